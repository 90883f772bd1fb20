"""The status screen: what it says in each state, how wide it is, and what its JSON holds."""

import json
from dataclasses import replace

import pytest

from common.audit import Canary, RunCounts
from common.codec import dumps
from common.queue.workers import WorkerInfo
from common.records import RunInfo
from producer.status_data import Rate, Recent, RunStatus
from producer.status_state import duration, eta, next_command, state_of
from producer.status_store import Child, Example, one_line
from producer.status_view import bar, percent, row, run_json, screen, worker_lines

INFO = RunInfo(
    run="ultrachat-200k",
    epoch="e" * 16,
    state="open",
    priority=0,
    items=902_087,
    fingerprint="f" * 64,
    model="Qwen/Qwen3.6-27B",
    model_fingerprint="",
    created=1_000_000.0,
)
COUNTS = RunCounts(
    run="ultrachat-200k",
    epoch="e" * 16,
    state="open",
    total=902_087,
    loaded=902_087,
    queued=400_000,
    waiting=12,
    leased=336,
    generated=120,
    committed=501_616,
    dead=3,
    done=501_736,
    committed_counter=501_616,
    completion_tokens=501_736 * 1000,
    wasted_tokens=1_000_000,
    failures={"empty": 40, "timeout": 7, "aborted": 3, "busy": 1},
    verdicts={"ok": 500_000, "truncated": 1_736},
    at=1_086_400.0,
    since_lease=1.0,
    since_result=1.0,
    since_commit=42.0,
)


def worker(number, **gauges):
    shown = {
        "engine": "ready",
        "in_flight": "48",
        "max_running": "48",
        "tokens_per_second": "3500",
        "completed": "71000",
        "failed": "0",
        "engine_starts": "1",
    }
    return WorkerInfo(
        name=f"gpu{number}-node1",
        state="busy",
        queues=(INFO.run,),
        hostname="node1",
        pid=number,
        finished=1,
        failed=0,
        birth="",
        last_heartbeat="",
        gauges=shown | gauges,
    )


STATUS = RunStatus(
    info=INFO,
    counts=COUNTS,
    workers=[worker(0), worker(1), worker(2, tokens_per_second="1800", engine_starts="3")],
    dead_by_class={"too_long": 3},
    stream_limit=20_000,
    recent=Rate(8.8, 8_800.0),
    average=Rate(5.8, 5_800.0),
)


def with_(status=STATUS, *, info=None, **counts):
    info = replace(status.info, **(info or {}))
    return replace(status, info=info, counts=replace(status.counts, state=info.state, **counts))


def test_the_screen():
    assert screen(STATUS).split("\n") == [
        "ultrachat-200k  generating",
        "[###########.........] 55.6 %  501,619 of 902,087; kept but flagged: 1,736 truncated",
        "queued 400,000, waiting retry 12, leased 336, generated 120, committed 501,616, dead 3",
        "now 8.8/s (8,800 tok/s), average 5.8/s (5,800 tok/s), wasted 0.1 % of tokens",
        "done in 12 h 38 min to 19 h 10 min, last commit 42 s ago",
        "dead: 3 too_long; failed tries: 40 empty, 7 timeout, 3 aborted, 1 more",
        "  gpu0-node1  ready  48/48 in flight  3,500 tok/s  finished 71,000",
        "  gpu1-node1  ready  48/48 in flight  3,500 tok/s  finished 71,000",
        "  gpu2-node1  ready  48/48 in flight  1,800 tok/s  finished 71,000  restarts 2  <- slow",
        "Next: gen-producer failed ultrachat-200k",
    ]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("state", ["open", "loading", "paused", "held", "closed", "cancelled"])
def test_every_line_fits_and_is_plain_ascii(width, state):
    long = with_(info={"run": "r" * 63, "state": state}, hold_reason="too many empty answers " * 4)
    lines = screen(long, width=width).split("\n")
    assert max(map(len, lines)) <= max(width, 67)  # a name of 63 characters is not broken
    assert screen(long, width=width).isascii()
    assert len(row(long, width=width)) <= width
    if width == 100:
        assert len(lines) - len(long.workers) <= 9


NOBODY = replace(STATUS, workers=[])
SILENT = {"since_result": 600.0, "since_lease": 600.0}
STARTING = replace(STATUS, workers=[worker(0, engine="starting"), worker(1, engine="backoff")])
FULL = {"generated": 20_000, "queued": 380_120, "done": 521_616}
STORED = {"queued": 0, "waiting": 0, "leased": 0, "generated": 400_468, "done": 902_084}
ENDED = {**STORED, "generated": 0, "committed": 902_084, "committed_counter": 902_084}


@pytest.mark.parametrize(
    ("status", "word", "cause", "command"),
    [
        (STATUS, "generating", "", "failed ultrachat"),
        (with_(dead=0, queued=400_003), "generating", "", "status ultrachat-200k --watch"),
        (with_(info={"state": "loading"}), "loading", "902,087 of 902,087", "load --run"),
        (with_(info={"state": "paused"}), "paused", "", "resume"),
        (with_(info={"state": "held"}, hold_reason="87 % empty"), "held", "87 % empty", "resume"),
        (with_(info={"state": "cancelled"}), "cancelled", "", "load --run"),
        (with_(queued=399_999), "damaged", "nowhere", "load --run"),
        (replace(STATUS, suspended=True), "suspended", "rq suspend", "rq resume"),
        (NOBODY, "stalled", "no consumer serves it", "gen-consumer --gpu 0 --model Qwen"),
        (STARTING, "starting", "engines are loading", "failed"),
        (replace(STATUS, workers=[worker(0, engine="fatal")]), "stalled", "have failed", "failed"),
        (with_(**SILENT), "stalled", "last result 10 min ago", "failed"),
        (with_(**SILENT, leased=0, waiting=348), "stalled", "348 retries wait", "failed"),
        (
            with_(**FULL),
            "stalled",
            "sink is behind",
            "sink",
        ),
        (with_(**STORED, since_commit=300.0), "stalled", "last commit 5 min ago", "gen-sink"),
        (with_(**ENDED), "finishing", "closes the run", "gen-sink"),
        (with_(info={"state": "closed"}, **ENDED), "finishing", "_SUCCESS", "gen-sink"),
        (
            replace(with_(info={"state": "closed"}, **ENDED), success=True),
            "done",
            "3 dead-lettered",
            "verify",
        ),
    ],
)
def test_states_with_cause_and_next_command(status, word, cause, command):
    assert state_of(status)[0] == word
    assert cause in state_of(status)[1]
    assert command in next_command(status)


def test_the_end_is_only_told_while_things_move():
    assert eta(STATUS) is not None
    assert eta(NOBODY) is None
    assert eta(replace(STATUS, recent=None, average=None)) is None
    close = replace(STATUS, recent=Rate(6.0, 1.0), average=Rate(5.8, 1.0))
    assert "done in about 18 h" in screen(close)


def test_a_bar_is_full_only_at_the_end():
    assert bar(999, 1000) == "#" * 19 + "."
    assert (bar(1000, 1000), percent(1000, 1000)) == ("#" * 20, "100.0 %")
    assert percent(999_999, 1_000_000) == "99.9 %"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (90_061, "1 d 1 h")],
)
def test_times(seconds, text):
    assert duration(seconds) == text


def test_the_recent_rate_is_of_the_last_minute():
    recent = Recent()
    rates = [
        recent.rate(replace(COUNTS, at=float(at), committed=at * 2, completion_tokens=at * 100))
        for at in (0, 30, 60, 90, 120)
    ]
    assert rates == [None, *[Rate(2.0, 100.0)] * 4]
    assert (
        recent.rate(replace(COUNTS, at=150.0, committed=240, completion_tokens=12_000)).tokens == 50
    )
    assert recent.rate(replace(COUNTS, at=180.0, committed=0, completion_tokens=0)) is None


def test_the_json_is_plain_and_versioned():
    data = json.loads(dumps(run_json(STATUS)))
    assert (data["version"], data["run"], data["state"]) == (1, INFO.run, "generating")
    assert data["counts"] == {
        "total": 902_087,
        "loaded": 902_087,
        "queued": 400_000,
        "waiting": 12,
        "leased": 336,
        "generated": 120,
        "committed": 501_616,
        "dead": 3,
    }
    assert data["rate"]["recent"] == {"completions": 8.8, "tokens": 8800.0}
    assert data["workers"][2]["gauges"]["engine_starts"] == "3"
    assert data["problems"] == []


@pytest.mark.parametrize(
    ("model", "command"),
    [
        ("smollm2", "gen-consumer --engine llamacpp --model smollm2"),
        ("/m/My Tiny.gguf", "gen-consumer --engine llamacpp --model '/m/My Tiny.gguf'"),
        ("Qwen/Qwen3.6-27B", "gen-consumer --gpu 0 --model Qwen/Qwen3.6-27B"),
    ],
)
def test_the_consumer_that_is_named_can_serve_the_model(model, command):
    served = replace(STATUS, workers=[], info=replace(STATUS.info, model=model))
    assert next_command(served) == command


def line_of(**gauges):
    (line,) = worker_lines([worker(0, **gauges)])
    return line


def test_a_worker_shows_what_was_asked_where_less_came_of_it():
    hybrid = {"max_running": "40", "state_slots": "200", "slots_per_request": "5"}
    asked = line_of(asked_running="64", **hybrid)
    assert "48/40 in flight (64 asked: 200 state slots, 5 each)" in asked
    assert "(64 asked)" in line_of(asked_running="64", max_running="40")
    for same in ("40", "20", ""):
        assert "asked" not in line_of(asked_running=same, **hybrid)
    assert "asked" not in line_of(asked_running="64", max_running="0")  # not ready yet


def test_a_worker_shows_its_card():
    busy = {"gpu_up": "1", "gpu_utilization": "0.974", "gpu_power_watts": "688.4"}
    line = line_of(**busy, gpu_temperature_celsius="64", accept_length="2.84")
    assert line.endswith("  97 % busy  688 W  64 C  drafts 2.8")
    assert "slowed" not in line_of(**busy, gpu_throttled="power_cap")
    slowed = line_of(**busy, gpu_throttled="hw_thermal,power_cap", gpu_failing="rows_lost")
    assert slowed.endswith("  GPU slowed: hw_thermal  GPU failing: rows_lost")
    assert line_of(gpu_up="0").endswith("  GPU LOST: the driver cannot read it")
    empty = dict.fromkeys((*busy, "gpu_temperature_celsius", "gpu_failing"), "")
    assert line_of(**empty) == line_of()


HELD = replace(
    with_(
        info={"state": "held"},
        hold_reason="174 of the first 200 rows went wrong (87 %): 174 empty",
        canary=Canary("held", 200, 200, 174, {"empty": 174, "ok": 26}, "faults"),
    ),
    examples=[
        Example(3, 4, "id-3", "empty", "Who wrote Faust?", "no text in 1 tokens"),
        Example(5, 6, None, "empty", "What is 2 + 2?", "no text in 1 tokens"),
    ],
    children=[Child("ultrachat-200k-truncated", "truncated", 1_736, "open", 12)],
)


def test_a_held_run_shows_what_went_wrong_and_how_to_go_on():
    lines = screen(HELD).split("\n")
    assert lines[0] == (
        "ultrachat-200k  held: 174 of the first 200 rows went wrong (87 %): 174 empty"
    )
    assert '  row 4 id-3: "Who wrote Faust?" -> empty: no text in 1 tokens' in lines
    assert '  row 6: "What is 2 + 2?" -> empty: no text in 1 tokens' in lines
    assert "children: ultrachat-200k-truncated (12 of 1,736 truncated redone)" in lines
    assert "gen-producer resume ultrachat-200k --accept" in lines[-2] + lines[-1]
    assert len(lines) - len(HELD.workers) <= 10
    data = json.loads(dumps(run_json(HELD)))
    assert data["canary"]["classes"] == {"empty": 174, "ok": 26}
    assert data["examples"][0]["row_id"] == "id-3"
    assert data["children"][0]["run"] == "ultrachat-200k-truncated"
    assert data["flagged"] == {"truncated": 1_736}


def test_texts_of_rows_and_answers_cannot_steer_a_terminal():
    assert one_line("a\x1b[31mb\r\n\tc \u202e d\u2028e") == "a [31mb c d e"
    assert one_line("ä" * 100) == "?" * 57 + "..."
