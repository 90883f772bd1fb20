"""The status screen: what it says in each state, how wide it is, and what its JSON holds."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from common.audit import Canary, RunCounts
from common.codec import dumps
from common.queue.item_state import FailedTry, ItemState, WaitingResult
from common.queue.server import ServerFacts
from common.queue.workers import WorkerInfo
from common.records import RunInfo
from producer.fleet import STATUSES
from producer.status.as_json import run_json
from producer.status.data import FEW, Rate, RunStatus, _recent
from producer.status.rows import duration, worker_lines
from producer.status.state import cost, eta, label, next_command, state_of
from producer.status.store import Child, Example, one_line
from producer.status.view import LINES, bar, fold, percent, row, screen
from producer.trace.life import Answer, Letter, Life
from producer.trace.names import Match, Matches
from producer.trace.words import trace_json

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


PLACE = {"host": "n1.cluster"}
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


FULL_ROWS = [
    worker(10, **PLACE, gpu="10", token_usage="0.871", gpu_temperature_celsius="64"),
    worker(2, **PLACE, gpu="2", tokens_per_second="1800", engine_starts="3"),
    worker(3, **PLACE, gpu="3", engine="starting", in_flight="0", tokens_per_second="0"),
]
FINE = replace(
    STATUS,
    counts=replace(COUNTS, gpu_seconds=493.8 * 3600),
    recent=Rate(8.8, 8_800.0, 8.4, 9.1),
    workers=FULL_ROWS,
    last_part=1003,
    price=2.5,
)


TRIES = "40 empty, 7 timeout, 3 aborted, 1 more"
SLOWEST = "<- slowest: 51 % of median  restarts 2"


def test_the_screen():
    assert screen(FINE).split("\n") == [
        "ultrachat-200k  generating: engine of gpu 3 starting",
        "[###########.........] 55.6 %  501,619 of 902,087; kept but flagged: 1,736 truncated",
        "queued 400,000, waiting retry 12, leased 336, generated 120, committed 501,616, dead 3",
        "now 8.8/s (8,800 tok/s), average 5.8/s (5,800 tok/s); done in 12 h 13 min to 13 h 14 min",
        "last commit part 1,003, 42 s ago; cost 1,234 so far, 1,296 in all (at 2.50 a GPU-hour)",
        f"dead: 3 too_long; failed tries: {TRIES}; wasted 0.1 % of tokens",
        f"  n1 gpu 2   ready     48/48 in flight  1,800 tok/s{' ' * 11}{SLOWEST}",
        "  n1 gpu 3   starting   0/48 in flight      0 tok/s",
        "  n1 gpu 10  ready     48/48 in flight  3,500 tok/s  KV 87 %",
        "Next: gen-producer failed ultrachat-200k",
    ]
    assert "; 494 GPU-hours so far, 518 in all\n" in screen(replace(FINE, price=None))


def test_a_narrow_screen_keeps_numbers_with_their_words_and_marks_with_their_cards():
    lines = screen(FINE, width=60).split("\n")
    assert max(map(len, lines)) <= 60
    assert lines[1:3] == [
        "[###########.........] 55.6 %  501,619 of 902,087;",
        "    kept but flagged: 1,736 truncated",
    ]
    assert "  n1 gpu 10  ready     3,500 tok/s" in lines
    assert "  n1 gpu 2   ready     1,800 tok/s  <- slowest: 51 % of" in lines
    assert fold("a, b; " + "c" * 70, 60) == ["a, b;", "    " + "c" * 70]


def test_rows_that_there_is_no_room_for_are_counted_and_the_marked_ones_stay():
    many = [worker(n, **PLACE, gpu=str(n), tokens_per_second=f"{3000 + n}") for n in range(40)]
    many[25] = worker(25, **PLACE, gpu="25", gpu_up="0")
    lines = worker_lines(many, most=6)
    assert len(lines) == 6
    assert "gpu 25" in lines[4]
    assert "GPU LOST" in lines[4]
    assert lines[5] == "  ... and 35 more, 3,004 to 3,039 tok/s each"
    assert len(worker_lines(many)) == 40
    assert len(worker_lines(many, most=-5)) == 3


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("state", ["open", "loading", "paused", "held", "closed", "cancelled"])
def test_every_line_fits_and_is_plain_ascii(width, state):
    long = with_(info={"run": "r" * 63, "state": state}, hold_reason="too many empty answers " * 4)
    lines = screen(long, width=width).split("\n")
    assert max(map(len, lines)) <= max(width, 67)  # a name of 63 characters is not broken
    assert screen(long, width=width).isascii()
    assert len(row(long, width=width)) <= width
    if width == 100:
        assert len(lines) - len(long.workers) <= LINES + 1


NOBODY = replace(STATUS, workers=[])
ELSEWHERE = replace(NOBODY, others=7)
LOST = replace(
    STATUS,
    workers=[worker(0), worker(1, **PLACE, gpu="1", gpu_up="0", engine="fatal")],
)
GONE = replace(STATUS, workers=[worker(0), replace(worker(7), gauges={}, ours=True)])
NO_ROOM = replace(STATUS, server=ServerFacts(3_990_000_000, 4_000_000_000, 9, append_only_ok=True))
SILENT = {"since_result": 600.0, "since_lease": 600.0}
STARTING = replace(
    STATUS,
    workers=[
        worker(n, **PLACE, gpu=str(n), engine=engine)
        for n, engine in ((2, "warming"), (11, "starting"), (3, "backoff"))
    ],
)
HALF = replace(
    STATUS,
    workers=[worker(0, engine="starting"), replace(worker(7), gauges={}, ours=True)],
)
MANY = replace(STATUS, workers=[worker(n, engine="starting") for n in range(9)])
FULL = {"generated": 20_000, "queued": 380_120, "done": 521_616}
STORED = {"queued": 0, "waiting": 0, "leased": 0, "generated": 400_468, "done": 902_084}
ENDED = {**STORED, "generated": 0, "committed": 902_084, "committed_counter": 902_084}


@pytest.mark.parametrize(
    ("status", "word", "cause", "command"),
    [
        (STATUS, "generating", "", "failed ultrachat"),
        (with_(dead=0, queued=400_003), "generating", "", "status ultrachat-200k --watch"),
        (with_(info={"state": "loading"}), "loading", "902,087 of 902,087", "load --run"),
        (with_(info={"state": "paused"}), "paused", "336 items in flight are finished", "resume"),
        (with_(info={"state": "held"}, hold_reason="87 % empty"), "held", "87 % empty", "resume"),
        (with_(info={"state": "cancelled"}), "cancelled", "", "load --run"),
        (with_(queued=399_999), "damaged", "nowhere", "load --run"),
        (replace(STATUS, suspended=True), "suspended", "rq suspend", "rq resume"),
        (NOBODY, "stalled", "no consumer serves this model", "gen-consumer --gpu 0 --model Qwen"),
        (ELSEWHERE, "stalled", "this model; 7 serve others", "gen-consumer --gpu 0 --model Qwen"),
        (STARTING, "starting", "engines of gpu 2 and 11 starting", "failed"),
        (STARTING, "starting", "engine of gpu 3 failed, starting again", "failed"),
        (HALF, "starting", "engine of gpu0-node1 starting; gpu7-node1 silent", "failed"),
        (MANY, "starting", "engines of 9 consumers starting", "failed"),
        (LOST, "generating", "engine of gpu 1 failed for good", "failed"),
        (LOST, "generating", "gpu 1 lost", "failed"),
        (GONE, "generating", "gpu7-node1 silent", "failed"),
        (NO_ROOM, "generating", "Redis full: 3.99 of 4.00 GB", "CONFIG SET maxmemory"),
        (with_(NO_ROOM, info={"state": "loading"}), "loading", "Redis full", "maxmemory"),
        (replace(STATUS, workers=[worker(0, engine="fatal")]), "stalled", "have failed", "failed"),
        (with_(**SILENT), "stalled", "no result, 336 items are leased", "failed"),
        (with_(**SILENT, leased=0, waiting=348), "stalled", "348 retries wait", "failed"),
        (
            with_(**FULL),
            "stalled",
            "sink behind",
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


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (with_(**SILENT), "stalled 10 min: no result"),
        (with_(**FULL, since_commit=200.0), "stalled 3 min 20 s: sink behind"),
        (with_(NOBODY, since_result=None, since_lease=None), "stalled 1 d: no consumer"),
        (NOBODY, "stalled: no consumer"),
        (STATUS, "generating"),
    ],
)
def test_a_stall_is_told_with_its_length(status, said):
    assert label(status).startswith(said)
    lines = screen(status).split("\n")
    assert lines[0].startswith(f"{INFO.run}  {said}")
    if "stalled " in said:
        assert f"stalled for {said.removeprefix('stalled ').partition(':')[0]}" in lines[3]
        assert "done in" not in screen(status)


def test_the_end_is_only_told_while_things_move():
    assert eta(STATUS) is not None
    assert eta(NOBODY) is None
    assert eta(replace(STATUS, recent=None, average=None)) is None
    close = replace(STATUS, recent=Rate(5.9, 1.0), average=Rate(5.85, 1.0))
    assert "done in about 18 h" in screen(close)


def test_the_recent_rate_is_of_what_ended_lately_and_as_wide_as_chance_makes_it():
    counts = replace(COUNTS, completion_tokens=501_736 * 100)
    mute = worker(0, tokens_per_second="")
    rate = _recent(counts, [mute], [600, 4200], 420.0)
    assert (rate.completions, rate.tokens) == (10.0, 1000.0)
    assert rate.low == pytest.approx((600 - 600**0.5) / 60)
    assert rate.high == pytest.approx((600 + 600**0.5) / 60)
    few = _recent(counts, [worker(0)], [FEW - 1, 84], 420.0)
    assert (few.completions, few.tokens) == (0.2, 3500.0)  # what the engines say now
    began = _recent(counts, [mute], [100, 100], 20.0)  # twenty seconds ago
    assert began.completions == 5.0
    assert _recent(counts, [], [600, 4200], 420.0) is None  # nobody is heard of
    assert _recent(counts, [worker(0)], [0, 0], None) == Rate(35.0, 3500.0)
    one = _recent(counts, [mute], [0, 1], 300.0)
    assert (one.low, one.high) == (None, None)


def test_the_cost_is_of_cards_that_hold_items_now_until_the_end():
    found = cost(FINE)
    assert found.hours == pytest.approx(493.8)
    best, worst = eta(FINE)
    assert found.total == pytest.approx((493.8 + 2 * best / 3600, 493.8 + 2 * worst / 3600))
    assert cost(STATUS) is None
    idle = replace(FINE, workers=[worker(0, in_flight="0")])
    assert cost(idle).total is None
    assert run_json(FINE)["cost"]["so_far"] == pytest.approx(1234.5)
    assert run_json(replace(FINE, price=None))["cost"]["so_far"] is None


def test_some_of_many_dead_letters_stand_for_all():
    many = with_(dead=40_000, queued=360_003)
    many = replace(many, dead_by_class={"too_long": 3_000, "empty": 2_000})
    assert "dead: about 24,000 too_long, 16,000 empty;" in screen(many)
    data = run_json(many)
    assert (data["dead_looked_at"], data["dead_by_class"]["empty"]) == (5_000, 2_000)


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


def test_a_silent_worker_is_told_with_how_long_and_an_idle_one_is_not_slow():
    silent = replace(worker(0), gauges={}, ours=True, last_heartbeat="2026-01-31T23:59:59.000000Z")
    at = 1769903999.0 + 95
    assert worker_lines([silent], at=at)[0].endswith("  <- no word for 1 min 35 s")
    assert worker_lines([silent])[0].endswith("  <- no word since 2026-01-31T23:59:59Z")
    assert worker_lines([replace(silent, last_heartbeat="")])[0].endswith("  <- no word ever")
    idle = worker(1, in_flight="0", tokens_per_second="10")
    assert not any("slow" in line for line in worker_lines([worker(0), worker(2), idle]))


def test_the_last_ones_are_not_timed():
    last = with_(queued=0, waiting=0, leased=10, committed=901_954, done=902_074)
    last = replace(last, counts=replace(last.counts, committed_counter=901_954))
    assert "; the last 10 are under way" in screen(last)
    assert eta(last) is not None


def line_of(**gauges):
    (line,) = worker_lines([worker(0, **gauges)])
    return line


def test_a_worker_shows_what_was_asked_where_less_came_of_it():
    hybrid = {"max_running": "40", "state_slots": "200", "slots_per_request": "5"}
    asked = line_of(asked_running="64", **hybrid)
    assert "48/40 in flight" in asked
    assert asked.endswith("  (64 asked: 200 state slots, 5 each)")
    assert "(64 asked)" in line_of(asked_running="64", max_running="40")
    for same in ("40", "20", ""):
        assert "asked" not in line_of(asked_running=same, **hybrid)
    assert "asked" not in line_of(asked_running="64", max_running="0")  # not ready yet


def test_a_worker_shows_its_card():
    busy = {"gpu_up": "1", "gpu_utilization": "0.974", "gpu_power_watts": "688.4"}
    more = {"gpu_temperature_celsius": "64", "accept_length": "2.84", "token_usage": "0.5"}
    (line,) = worker_lines([worker(0, **busy, **more)], width=200)
    assert line.endswith("  KV 50 %  97 % busy  688 W  64 C  drafts 2.8  finished 71,000")
    assert "97 % busy" in line_of(**busy)
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
        "ultrachat-200k  held by canary: 174 of the first 200 rows went wrong (87 %): 174 empty"
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


def documented(heading):
    text = (Path(__file__).parents[2] / "docs/status.md").read_text(encoding="utf-8")
    section = text.partition(heading)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (.+) \|$", section, re.MULTILINE)
    return {
        name: set(re.findall(r"`(\w+)`", meaning))
        for names, meaning in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def test_the_documented_json_is_what_is_printed():
    fields = documented("## The JSON, version 1")
    data = json.loads(
        dumps(run_json(replace(FINE, examples=HELD.examples, children=HELD.children)))
    )
    data["redis"] = run_json(NO_ROOM)["redis"]
    assert set(fields) == set(data)
    for name in ("counts", "rate", "cost", "tokens", "seconds_since", "canary", "redis"):
        assert set(data[name]) <= fields[name], name
    for name in ("workers", "examples", "children"):
        assert set(data[name][0]) <= fields[name], name
    assert {"finishing", *STATUSES} - {"closed"} <= fields["state"]


def test_the_documented_json_of_an_item_is_what_is_printed():
    fields = documented("## One item: `trace`")
    failed = FailedTry(1.0, "gpu0", "why")
    waits = WaitingResult("1-1", "ok", 2, b"")
    state = ItemState(INFO.run, 7, "open", "generated", 1.0, failures=[failed], result=waits)
    answer = Answer(None, "", None, *("ok", "stop"), *range(6), *("w", "s"), 1.0, *("m", "e"))
    letter = Letter("empty", "why", "w", "at")
    life = Life(INFO.run, 7, 8, 0, "id", "", ("up", 3), state, answer, letter)
    told = json.loads(dumps(trace_json(INFO.run, "7", Matches([Match(7, 8, 0)], 1), life, [])))
    assert set(told["life"]) == set(fields)
    inner = told["life"]["redis"]
    assert {*inner, *inner["failures"][0], *inner["result"]} <= fields["redis"]
    assert set(told["life"]["completion"]) <= fields["completion"]
    assert set(told["life"]["letter"]) == fields["letter"]
    text = (Path(__file__).parents[2] / "docs/status.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text.partition("## One item")[2] for name in told)


def test_the_documented_screen_is_the_one_of_the_first_test():
    text = (Path(__file__).parents[2] / "docs/status.md").read_text(encoding="utf-8")
    shown = re.search(r"^    drafter-1  generating.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)[0]
    lines = [line[4:].replace("drafter-1", INFO.run) for line in shown.split("\n")]
    assert lines == screen(FINE).split("\n")
