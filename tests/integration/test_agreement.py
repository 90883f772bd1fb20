"""What a consumer's engine owes to a run, and what others see of a consumer that is not at work."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from common.errors import EngineError, Exit
from common.ids import RunName
from common.keys import RunKeys, gauges_key
from consumer import start
from consumer.agreement import Agreement
from consumer.display import GAUGE_TTL_SECONDS
from consumer.engine.honesty import Honesty, pack, unpack
from consumer.engine.honesty_paths import Probe
from consumer.engine.honesty_texts import QUESTIONS
from consumer.engine.supervisor import StartBudget
from producer.status.data import Watcher
from producer.status.state import next_command, state_of
from producer.status.view import screen
from tests.support.consumers import SECONDS
from tests.support.fake_engine import FakeSglang
from tests.support.servers import eventually

BUDGET = StartBudget(attempts=3, backoff_base_seconds=0.05, kill_seconds=0.3, poll_seconds=0.05)
OTHERWISE = ("--faults", json.dumps({"dishonest": "always"}))
SLOW = ("--token-seconds", "0.01", "--answer-tokens", "40")


@pytest.fixture
def launched(monkeypatch):
    """What the consumer launches as SGLang is the stand-in."""
    monkeypatch.setattr(start, "engine_named", lambda _name: FakeSglang())


async def status_of(world, run="one"):
    (status,) = await Watcher(world.client, world.settings).look(RunName(run))
    return status


@pytest.mark.row("F14")
async def test_an_engine_that_answers_otherwise_than_the_runs_first_one_leaves_it_alone(
    world, launched
) -> None:
    """It agrees with itself, so it may serve a run that it is the first for."""
    await world.load(30)
    async with world.serving(honesty=True, budget=BUDGET, flags=SLOW):
        await world.some_generated()
    kept = world.sync.get(RunKeys(RunName("one")).reference)
    assert kept is not None
    before = await world.counts()
    assert before.queued > 0

    await world.load(5, "two")
    with pytest.raises(EngineError, match="otherwise than the first one") as refusal:
        await world.burst(honesty=True, budget=BUDGET, flags=OTHERWISE)
    assert "one" in refusal.value.why
    assert (await world.counts("two")).generated == 5
    seen = await world.counts()
    assert (seen.queued, seen.generated) == (before.queued, before.generated)
    assert world.sync.get(RunKeys(RunName("one")).reference) == kept

    assert await world.burst(honesty=True, budget=BUDGET, runs=(RunName("one"),)) == Exit.DONE
    assert (await world.counts()).generated == 30


OTHER = tuple(Probe(name, "uncached", "x", (1, 2), (-9.0, -9.0)) for name in QUESTIONS)


async def test_a_burst_does_not_end_with_a_refusal_of_a_run_that_is_over(world, launched) -> None:
    await world.load(3)
    world.sync.set(RunKeys(RunName("one")).reference, pack(OTHER))
    await world.load(30, "two")
    async with world.serving(burst=True, honesty=True, budget=BUDGET, flags=SLOW) as serving:
        await eventually(lambda: _refused(world), 60)
        await world.runs.cancel(RunName("one"))
        assert await asyncio.wait_for(serving.task, SECONDS) == Exit.DONE
    assert (await world.counts("two")).generated == 30


async def _refused(world) -> bool:
    workers = await world.runs.workers()
    return any(world.sync.hget(gauges_key(one.name), "refused") == b"one" for one in workers)


async def test_status_says_that_engines_answer_otherwise(world, launched) -> None:
    await world.load(3)
    world.sync.set(RunKeys(RunName("one")).reference, pack(OTHER))
    async with world.serving(honesty=True, budget=BUDGET):

        async def said() -> bool:
            return "answer otherwise" in state_of(await status_of(world))[1]

        await eventually(said, 60)
    assert (await world.counts()).since_lease is None


async def test_the_first_record_stays_and_an_unreadable_one_objects_to_nothing(world) -> None:
    await world.load(1)
    mine = (Probe("p", "uncached", "x", (1,), (-0.1,)),)
    assert await world.runs.reference(RunName("one"), pack(mine)) == pack(mine)
    assert await world.runs.reference(RunName("one"), b"other") == pack(mine)
    assert unpack(pack(mine)) == mine
    assert unpack(b"\xff") == unpack(b'[{"prompt": 1}]') == ()
    info = await world.runs.get(RunName("one"))
    world.sync.set(RunKeys(RunName("one")).reference, b"from another release")
    check = Honesty()
    check.answers = mine
    assert await Agreement(world.runs, check, world.store).objection(info) == ""
    assert await Agreement(world.runs, None, world.store).objection(info) == ""


async def test_a_consumer_whose_engine_still_starts_is_seen_to_be_on_its_way(
    world, launched
) -> None:
    await world.load(3)
    await world.load(3, "of-another-model", model="another")
    async with world.serving(budget=BUDGET, flags=("--start-seconds", "60")):

        async def registered() -> bool:
            return [w.queues for w in await world.runs.workers()] == [("one",)]

        await eventually(registered, 20)

        async def said() -> bool:
            return state_of(await status_of(world))[0] == "starting"

        await eventually(said)
    assert state_of(await status_of(world))[1] == "no consumer serves this model"


async def test_a_killed_consumer_is_silent_and_counts_for_no_rate(world) -> None:
    await world.load(400)
    with world.consume("--", *SLOW) as process:
        await world.some_generated(20)
        process.signal(signal.SIGKILL)
        process.wait()
    (worker,) = await world.runs.workers()
    key = gauges_key(worker.name)
    assert 0 < world.sync.ttl(key) <= GAUGE_TTL_SECONDS
    world.sync.delete(key)  # as its time to live does
    status = await status_of(world)
    assert [one.silent for one in status.workers] == [True]
    assert state_of(status) == ("stalled", "its consumers are silent")
    assert "gen-consumer" in next_command(status)
    (row,) = (line for line in screen(status).split("\n") if worker.name in line)
    assert row.startswith(f"  {worker.name}  silent  finished ")
    assert "<- no word " in row
    assert "now" not in screen(status).split("average")[0].split("dead")[-1]
    assert status.recent is None


async def test_a_stock_worker_shows_no_figures_and_is_not_silent(world) -> None:
    await world.load(1)
    record = {"state": "busy", "queues": "one", "birth": "", "last_heartbeat": ""}
    world.sync.sadd("rq:workers", "rq:worker:stock")
    world.sync.hset("rq:worker:stock", mapping=record)
    status = await status_of(world)
    assert [one.silent for one in status.workers] == [False]
    assert "stock  busy" in screen(status)


async def test_the_longest_stall_time_of_the_served_runs_is_in_force(
    world, launched, monkeypatch
) -> None:
    made = []
    real = start.Supervisor

    def remember(*args, **options):
        made.append(real(*args, **options))
        return made[0]

    monkeypatch.setattr(start, "Supervisor", remember)
    await world.load(1, "short", stall_seconds=5.0)
    async with world.serving(budget=BUDGET):
        await eventually(lambda: made and made[0].stall_seconds == 5.0, 20)
        await world.load(1, "long", stall_seconds=500.0)
        await eventually(lambda: made[0].stall_seconds == 500.0)
        await world.runs.cancel(RunName("long"))
        await eventually(lambda: made[0].stall_seconds == 5.0)
