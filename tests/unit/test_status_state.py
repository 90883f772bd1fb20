"""The state of a run: its word, its cause, what to do about it, how fast and until when."""

from dataclasses import replace

import pytest

from producer.status import command as status_command
from producer.status.as_json import run_json
from producer.status.command import Sure
from producer.status.data import FEW, Rate, recent_rate
from producer.status.serving import to_come
from producer.status.state import cost, doubtful, eta, label, next_command, state_of
from producer.status.view import screen
from tests.support.statuses import (
    COUNTS,
    FINE,
    INFO,
    NO_ROOM,
    PLACE,
    STATUS,
    with_,
    worker,
)

NOBODY = replace(STATUS, workers=[])
ELSEWHERE = replace(NOBODY, others=7)
LOST = replace(
    STATUS,
    workers=[worker(0), worker(1, **PLACE, gpu="1", gpu_up="0", engine="fatal")],
)
GONE = replace(STATUS, workers=[worker(0), replace(worker(7), gauges={}, ours=True)])
LEAVES = {"unequal": f"another,{INFO.run}"}
UNEQUAL = replace(STATUS, workers=[worker(0, **LEAVES), worker(1, **LEAVES)])
ONE_EQUAL = replace(STATUS, workers=[worker(0, **LEAVES), worker(1)])
OTHERWISE = replace(STATUS, workers=[worker(0, refused=INFO.run)])
ASKS_EQUAL = replace(NOBODY, reproducible=True)
SILENT = {"since_result": 600.0, "since_lease": 600.0}
STUCK = replace(STATUS, workers=[worker(0, tokens_per_second="0.0"), worker(1, in_flight="0")])
NEXT = replace(with_(**SILENT, leased=0, queued=400_336), behind="first")
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
LONG_AGO = {"since_commit": 1200.0, "since_result": 300.0}
UNTOUCHED = with_(
    queued=902_087,
    waiting=0,
    leased=0,
    generated=0,
    committed=0,
    dead=0,
    done=0,
    committed_counter=0,
    since_lease=None,
    since_result=None,
)
IDLE = replace(UNTOUCHED, workers=[worker(0, in_flight="0"), worker(1, in_flight="0")])
FRESH = with_(IDLE, info={"created": COUNTS.at - 5.0})
ENDED = {**STORED, "generated": 0, "committed": 902_084, "committed_counter": 902_084}


@pytest.mark.parametrize(
    ("status", "word", "cause", "command"),
    [
        (STATUS, "generating", "", "failed ultrachat"),
        (with_(dead=0, queued=400_003), "generating", "", "status ultrachat-200k --watch"),
        (with_(info={"state": "loading"}), "loading", "902,087 of 902,087", "load --run"),
        (with_(info={"state": "paused"}), "paused", "336 items in flight are finished", "resume"),
        (with_(info={"state": "held"}, hold_reason="87 % empty"), "held", "87 % empty", "resume"),
        (with_(info={"state": "cancelled"}, **STORED), "cancelled", "", "load --run"),
        (with_(info={"state": "cancelled"}), "cancelled", "400,348 items are still open", "cancel"),
        (with_(queued=399_999), "damaged", "nowhere", "load --run"),
        (replace(STATUS, suspended=True), "suspended", "rq suspend", "rq resume"),
        (NOBODY, "stalled", "no consumer serves this model", "gen-consumer --gpu 0 --model Qwen"),
        (ELSEWHERE, "stalled", "this model; 7 serve others", "gen-consumer --gpu 0 --model Qwen"),
        (ASKS_EQUAL, "stalled", "no consumer serves", "--model Qwen/Qwen3.6-27B --reproducible"),
        (UNEQUAL, "stalled", "it asks for equal tokens, and no consumer", "--reproducible"),
        (ONE_EQUAL, "generating", "", "failed"),
        (OTHERWISE, "stalled", "answer otherwise than its first one", "failed"),
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
        (with_(STUCK, **SILENT), "stalled", "no result, 336 items are leased", "failed"),
        (with_(**SILENT), "generating", "", "failed"),  # long answers: tokens are made
        (NEXT, "waiting", "behind run first", "status first --watch    (or, to go first: "),
        (with_(NEXT, since_result=None, since_lease=None), "waiting", "behind run first", "N)"),
        (with_(**SILENT, leased=0, waiting=348), "stalled", "348 retries wait", "failed"),
        (
            with_(**FULL),
            "stalled",
            "sink behind",
            "sink",
        ),
        (with_(**STORED, **LONG_AGO), "stalled", "last commit 20 min ago", "gen-sink"),
        (with_(**STORED, since_commit=1200.0), "generating", "", "failed"),  # a result, just now
        (
            UNTOUCHED,
            "waiting",
            "nothing was handed out since it was loaded",
            "status ultrachat-200k --watch",
        ),
        (
            FRESH,
            "waiting",
            "nothing was handed out since it was loaded",
            "status ultrachat-200k --watch",
        ),
        (IDLE, "stalled", "it was loaded, and its consumers are idle", "status ultrachat-200k"),
        (with_(**ENDED), "finishing", "closes the run", "gen-sink"),
        (
            replace(with_(info={"state": "closed"}, **ENDED), success=False),
            "finishing",
            "_SUCCESS",
            "gen-sink",
        ),
        (with_(info={"state": "closed"}, **ENDED), "closed", "storage was not asked", "doctor"),
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
        (with_(STUCK, **SILENT), "stalled 10 min: no result"),
        (with_(**FULL, since_commit=200.0), "stalled 3 min 20 s: sink behind"),
        (with_(NOBODY, since_result=None, since_lease=None), "stalled 1 d: no consumer"),
        (with_(**STORED, **LONG_AGO), "stalled 5 min: results wait for a sink"),
        (NOBODY, "stalled: no consumer"),
        (STATUS, "generating"),
    ],
)
def test_a_stall_is_told_with_its_length(status, said):
    assert label(status).startswith(said)
    lines = screen(status).split("\n")
    assert lines[0].startswith(f"{INFO.run}  {said}")
    if "stalled " in said:
        assert not any("stalled" in line for line in lines[1:])  # it is said once
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
    rate = recent_rate(counts, [mute], [600, 4200], 420.0)
    assert (rate.completions, rate.tokens) == (10.0, 1000.0)
    assert rate.low == pytest.approx((600 - 600**0.5) / 60)
    assert rate.high == pytest.approx((600 + 600**0.5) / 60)
    few = recent_rate(counts, [worker(0)], [FEW - 1, 84], 420.0)
    assert (few.completions, few.tokens) == (0.2, 3500.0)  # what the engines say now
    began = recent_rate(counts, [mute], [100, 100], 20.0)  # twenty seconds ago
    assert began.completions == 5.0
    assert recent_rate(counts, [], [600, 4200], 420.0) is None  # nobody is heard of
    assert recent_rate(counts, [worker(0)], [0, 0], None) == Rate(35.0, 3500.0)
    one = recent_rate(counts, [mute], [0, 1], 300.0)
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


def test_the_last_ones_are_not_timed():
    last = with_(queued=0, waiting=0, leased=10, committed=901_954, done=902_074)
    last = replace(last, counts=replace(last.counts, committed_counter=901_954))
    assert "; the last 10 are under way" in screen(last)
    assert eta(last) is not None


OF_ITS_MODEL = replace(worker(0), queues=(), gauges={"engine": "ready", "model": INFO.model})
PUT_BACK = with_(replace(NOBODY, others=1, to_come=1), leased=0, queued=400_336, **SILENT)
LISTED = with_(IDLE, since_result=600.0, since_lease=600.0)
CLOSED = round((COUNTS.at - 60.0) * 1000)  # after the last result, in unix ms


@pytest.mark.parametrize(
    ("status", "holds"),
    [
        (PUT_BACK, True),
        (replace(PUT_BACK, to_come=0), False),  # consumers of other models cannot end it
        (LISTED, True),
        (replace(LISTED, workers=[worker(0, engine="fatal")]), False),
        (with_(STUCK, **SILENT), False),  # what is leased is with its consumers already
        (with_(**FULL, leased=0), False),
        (STATUS, False),
    ],
)
def test_a_stall_that_consumers_may_end_within_seconds_is_looked_at_again(status, holds):
    assert doubtful(status) == holds


def test_consumers_of_the_model_that_do_not_name_the_run_may_not_have_looked_yet():
    other = replace(OF_ITS_MODEL, gauges={"engine": "ready", "model": "another"})
    dead = replace(OF_ITS_MODEL, gauges={"engine": "fatal", "model": INFO.model})
    assert to_come([OF_ITS_MODEL, other, dead, worker(1, model=INFO.model)], INFO) == 1


def test_a_run_that_had_ended_before_ids_came_again_is_not_timed():
    assert label(PUT_BACK).startswith("stalled 10 min: no consumer")
    assert label(with_(PUT_BACK, closing=f"e-1-{CLOSED}")).startswith("stalled: no consumer")
    earlier = round((COUNTS.at - 900.0) * 1000)  # results came since
    assert label(with_(PUT_BACK, closing=f"e-1-{earlier}")).startswith("stalled 10 min")


class Looks:
    """A watcher that finds one state after another, and the last one from then on."""

    def __init__(self, *states):
        self.states = list(states)
        self.count = 0

    async def look(self, _run):
        self.count += 1
        return [self.states.pop(0) if len(self.states) > 1 else self.states[0]]


async def test_a_stall_is_told_only_if_it_lasts_longer_than_consumers_take_to_look(monkeypatch):
    monkeypatch.setattr(status_command, "_AGAIN_SECONDS", 0.0)
    (found,) = await Sure(Looks(PUT_BACK, PUT_BACK, STATUS)).look(INFO.run)
    assert found is STATUS
    monkeypatch.setattr(status_command, "LOOK_SECONDS", 0.0)
    lasting = Looks(PUT_BACK)
    sure = Sure(lasting)
    assert await sure.look(INFO.run) == [PUT_BACK]
    monkeypatch.setattr(status_command, "LOOK_SECONDS", 600.0)
    assert await sure.look(INFO.run) == [PUT_BACK], "what has lasted is told at once"
    assert lasting.count == 2
