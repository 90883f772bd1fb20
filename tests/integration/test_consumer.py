"""Whole consumers with a stand-in engine, everything else real; in this process, to be quick."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
import structlog
from rq.command import send_shutdown_command, send_stop_job_command

from common.errors import EngineError, EpochError, Exit
from common.keys import RQ_SUSPENDED
from common.records import Sampling
from consumer import daemon, start
from consumer.engine.supervisor import StartBudget, Supervisor
from consumer.leases.catalogue import Catalogue
from consumer.leases.lost import Served
from tests.support.consumers import enqueue_run
from tests.support.fake_engine import FakeSglang, fake_state, set_faults
from tests.support.servers import eventually

QUICK = StartBudget(attempts=3, backoff_base_seconds=0.1, kill_seconds=0.5)


@pytest.fixture
def launched(monkeypatch):
    """What the consumer launches as SGLang is the stand-in."""
    monkeypatch.setattr(start, "engine_named", lambda _name: FakeSglang())


async def test_a_burst_whose_engine_comes_up_in_the_middle_of_a_look_does_not_end(
    world, engine, monkeypatch
) -> None:
    looking, up = asyncio.Event(), asyncio.Event()
    look, wait_ready = Catalogue.look, Supervisor.wait_ready

    async def first_look_outlasts_the_start(self):
        first = not looking.is_set()
        looking.set()
        await look(self)
        if first:
            await up.wait()

    async def wait_and_tell(self):
        await looking.wait()  # the engine is there already, so it is ready at once
        facts = await wait_ready(self)
        up.set()
        return facts

    monkeypatch.setattr(daemon, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(Catalogue, "look", first_look_outlasts_the_start)
    monkeypatch.setattr(Supervisor, "wait_ready", wait_and_tell)
    await world.load(3)
    assert await world.burst(url=engine.url) == Exit.DONE
    assert (await world.counts()).generated == 3


@pytest.mark.row("C4")
async def test_a_burst_whose_run_redis_lost_as_the_engine_came_up_names_it(
    world, engine, monkeypatch
) -> None:
    """Nothing is left to lease then, either; and nothing of the run is done."""
    lost, seen, wait_ready, saw = (
        asyncio.Event(),
        asyncio.Event(),
        Supervisor.wait_ready,
        Served.saw,
    )

    async def wait_and_tell(self):
        facts = await wait_ready(self)
        await lost.wait()
        return facts

    def saw_and_tell(self, infos, wanted):
        saw(self, infos, wanted)
        seen.set()

    monkeypatch.setattr(daemon, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(Supervisor, "wait_ready", wait_and_tell)
    monkeypatch.setattr(Served, "saw", saw_and_tell)
    await world.load(3)
    async with world.serving(url=engine.url, burst=True) as burst:
        await asyncio.wait_for(seen.wait(), 30)
        await world.client.flushall()
        lost.set()
        with pytest.raises(EpochError, match="Redis lost one") as told:
            await asyncio.wait_for(burst.task, 60)
    assert told.value.exit_code == Exit.QUEUE
    assert "gen-producer load --run one" in told.value.fix


@pytest.mark.row("C4")
async def test_a_burst_with_results_of_a_lost_run_waits_for_its_load(world, slow_engine) -> None:
    await world.load(3)
    async with world.serving(url=slow_engine.url, burst=True) as burst:
        await world.running(slow_engine, 3)
        with structlog.testing.capture_logs() as logs:
            await world.client.flushall()
            await eventually(lambda: [one for one in logs if "are kept until" in one["event"]], 60)
            assert not burst.task.done()
            await world.load(3)
            assert await asyncio.wait_for(burst.task, 60) == Exit.DONE
    assert (await world.counts()).generated == 3


async def test_a_burst_answers_every_item_once_and_ends(world, engine) -> None:
    await world.load(60, samples=2)
    assert await world.burst(url=engine.url) == Exit.DONE
    results = world.results()
    assert sorted(r["k"] for r in results) == list(range(120))
    assert {r["verdict"] for r in results} <= {"ok", "truncated"}
    assert all(r["output_ids"] and r["content"] for r in results)
    assert len({r["seed"] for r in results}) == 120
    seen = await world.counts()
    assert (seen.generated, seen.queued, seen.leased) == (120, 0, 0)


async def test_rq_info_lists_the_worker_with_its_counts(world, engine) -> None:
    await world.load(30)
    async with world.serving(url=engine.url):
        await world.generated(30)

        async def told() -> bool:  # its first words are from before its engine was there
            workers = await world.runs.workers()
            return [(w.queues, w.gauges["max_running"]) for w in workers] == [(("one",), "8")]

        await eventually(told)
        (worker,) = await world.runs.workers()
        assert (worker.finished, worker.failed) == (30, 0)
        assert worker.gauges["model"] == world.model
        command = [sys.executable, "-m", "rq.cli", "info", "--url", world.url]
        line = next(line for line in _output(command).splitlines() if worker.name in line)
        assert "one" in line
        assert "30" in line
    assert await world.runs.workers() == []


async def test_what_came_of_what_was_asked_is_shown_and_sizes_the_window(world, launched) -> None:
    await world.load(40, sampling=Sampling(max_tokens=2000))
    slow = ("--token-seconds", "0.02", "--answer-tokens", "100000", "--max-mamba-cache-size", "30")
    async with world.serving(budget=QUICK, max_running=64, flags=slow):

        async def full() -> dict[str, str] | None:
            for worker in await world.runs.workers():
                if worker.gauges.get("in_flight") == "8":
                    return worker.gauges
            return None

        gauges = await eventually(full, 60)
        assert (gauges["asked_running"], gauges["max_running"]) == ("64", "6")
        assert (gauges["state_slots"], gauges["slots_per_request"]) == ("30", "5")
        assert "capped to 6" in gauges["capped"]
        assert gauges["profile"] == gauges["gpu_up"] == ""
        assert int(gauges["window"]) <= 8  # six, and a short queue


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


async def test_stop_job_gives_one_item_back_and_shutdown_drains(world, slow_engine) -> None:
    await world.load(1, sampling=Sampling(max_tokens=2000))
    async with world.serving(url=slow_engine.url) as serving:
        await world.running(slow_engine, 1)
        await eventually(world.runs.workers)
        before = (await fake_state(slow_engine))["running"]
        send_stop_job_command(world.sync, "one-0")

        async def another_request() -> bool:
            running = (await fake_state(slow_engine))["running"]
            return bool(running) and running != before

        await eventually(another_request, 20)
        (worker,) = await world.runs.workers()
        send_shutdown_command(world.sync, worker.name)
        assert await serving.task == Exit.DONE
    seen = await world.counts()
    assert (seen.queued, seen.leased, seen.failures) == (1, 0, {})


async def test_rq_suspend_pauses_leasing_and_resume_goes_on(world, engine) -> None:
    await world.client.set(RQ_SUSPENDED, 1)  # as `rq suspend` does
    await world.load(10)
    async with world.serving(url=engine.url):

        async def suspended() -> bool:
            return [w.state for w in await world.runs.workers()] == ["suspended"]

        await eventually(suspended, 20)
        assert (await world.counts()).queued == 10
        await world.client.delete(RQ_SUSPENDED)  # as `rq resume` does
        await world.generated(10)


@pytest.mark.row("B1")
async def test_an_engine_crash_charges_nobody_and_the_run_goes_on(world, launched) -> None:
    await world.load(40)
    faults = '{"crash_on_request": 25, "crash_code": 137}'
    assert await world.burst(flags=("--faults", faults), budget=QUICK) == Exit.DONE
    assert sorted(r["k"] for r in world.results()) == list(range(40))
    assert {r["attempt"] for r in world.results()} == {1}
    seen = await world.counts()
    assert seen.dead == 0
    assert set(seen.failures) == {"engine_down"}


@pytest.mark.row("B7")
async def test_an_engine_that_fails_everything_is_no_black_hole(world, launched) -> None:
    """It is condemned, leases nothing meanwhile, ends as FATAL, and has charged nobody."""
    queue = await world.load(500)
    async with world.serving(flags=("--faults", '{"fail_fast": true}'), budget=QUICK) as serving:
        with pytest.raises(EngineError):
            await serving.task
    seen = await world.counts()
    assert (seen.queued, seen.dead, seen.waiting, seen.generated) == (500, 0, 0, 0)
    assert 0 < sum(seen.failures.values()) < 100
    assert {lease.attempt for lease in await world.lease_all(queue, 500)} == {1}


@pytest.mark.row("B1")
async def test_an_item_that_kills_engines_is_run_alone_and_takes_no_neighbour_along(
    world, launched
) -> None:
    """Each engine dies at its fifth request: by turns the items become suspects, all end well."""
    await world.load(12)
    faults = '{"crash_on_request": 5, "crash_code": 1}'
    budget = StartBudget(attempts=50, backoff_base_seconds=0.05, backoff_cap_seconds=0.1)
    assert await world.burst(flags=("--faults", faults), budget=budget) == Exit.DONE
    seen = await world.counts()
    assert (seen.generated, seen.dead) == (12, 0)


async def test_a_dishonest_engine_gets_no_item(world, launched) -> None:
    await world.load(20)
    flags = ("--faults", '{"dishonest": "cached"}')
    async with world.serving(flags=flags, budget=QUICK, honesty=True) as serving:
        with pytest.raises(EngineError):
            await serving.task
    seen = await world.counts()
    assert (seen.queued, seen.failures) == (20, {})


async def test_an_honest_engine_passes_the_check(world, launched) -> None:
    await world.load(5)
    assert await world.burst(honesty=True) == Exit.DONE
    assert (await world.counts()).generated == 5


@pytest.mark.row("B7")
async def test_busy_answers_shrink_the_window_and_charge_nobody(world, engine) -> None:
    await set_faults(engine, storm_status=503, storm_count=20)
    await world.load(60)
    assert await world.burst(url=engine.url) == Exit.DONE
    assert sorted(r["k"] for r in world.results()) == list(range(60))
    assert (await world.counts()).failures == {"busy": 20}


@pytest.mark.row("B6")
@pytest.mark.row("B8")
@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        *((kind, "malformed") for kind in ("html", "not_json", "empty", "truncated")),
        *((kind, "malformed") for kind in ("swapped", "no_meta", "error")),
        ("cut_body", "engine_down"),
    ],
)
async def test_broken_answers_are_asked_for_again(world, engine, answer, verdict) -> None:
    await set_faults(engine, answer=answer, answer_count=4)
    await world.load(40)
    assert await world.burst(url=engine.url) == Exit.DONE
    assert sorted(r["k"] for r in world.results()) == list(range(40))
    assert {r["attempt"] for r in world.results()} == {1}
    assert (await world.counts()).failures == {verdict: 4}


@pytest.mark.row("F4")
@pytest.mark.row("F10")
async def test_empty_answers_are_charged_and_tried_again(world, engine) -> None:
    await set_faults(engine, empty_answers=5)
    await world.load(30, canary_rows=0)
    async with world.serving(url=engine.url):
        await world.generated(30)

        async def counted() -> list[tuple[int, int]]:
            return [(w.finished, w.failed) for w in await world.runs.workers()]

        assert await eventually(counted) == [(30, 5)]  # by the queue's scripts alone
    results = world.results()
    assert sorted(r["k"] for r in results) == list(range(30))
    assert max(r["attempt"] for r in results) > 1
    assert (await world.counts()).failures == {"empty": 5}


async def test_results_survive_a_redis_that_lost_everything(world, slow_engine) -> None:
    manifest = world.store_run(3, sampling=Sampling(max_tokens=200))
    await enqueue_run(world.client, manifest)
    async with world.serving(url=slow_engine.url):
        await world.running(slow_engine, 3)
        await world.client.flushall()

        async def all_generated() -> bool:
            state = await fake_state(slow_engine)
            return state["finished"] >= 3 and not state["running"]

        await eventually(all_generated, 30)
        await enqueue_run(world.client, manifest)
        await world.generated(3)
        first_three = {r["k"]: r["attempt"] for r in world.results()}
    assert first_three == {0: 1, 1: 1, 2: 1}
    assert (await fake_state(slow_engine))["requests"] <= 6


async def test_a_paused_run_is_left_alone_and_another_is_served(world, engine) -> None:
    await world.load(5, "paused")
    await world.load(5, "other")
    await world.runs.pause("paused")
    assert await world.burst(url=engine.url) == Exit.DONE
    assert (await world.counts("paused")).queued == 5
    assert (await world.counts("other")).generated == 5


async def test_a_late_run_is_found_by_a_waiting_consumer(world, engine) -> None:
    async with world.serving(url=engine.url):
        await eventually(world.runs.workers, 20)
        await world.load(5)
        await world.generated(5)


def test_help_fits_one_screen_and_is_there_at_once() -> None:
    command = [sys.executable, "-c", "from consumer.cli import main; main()", "--help"]
    text = _output(command)
    assert len(text.splitlines()) <= 40
    assert text.count("gen-consumer --") >= 2
    heavy = "import consumer.cli, sys; print([m for m in ('redis', 'rq', 'aiohttp', 'pydantic')"
    assert _output([sys.executable, "-c", heavy + " if m in sys.modules])"]).strip() == "[]"
