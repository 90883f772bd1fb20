"""gen-sink --burst ends with 0 only if what it was there for is finished, whatever Redis forgot."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from common.errors import DeadLettersError, EpochError, Exit, QueueError, StoreError
from common.ids import RunName
from common.keys import RUNS
from consumer.sink.service import SinkService
from tests.support.runs import store_run
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab, proven

SECONDS = 60


@pytest.fixture
async def lab(settings):
    """A lab of the run `one`; 2 of its 6 items are answered."""
    job = await load_job(settings, "one", rows=6)
    await job.answer(await job.lease(2))
    async with local_lab(settings, job) as made:
        yield made


@pytest.fixture
async def other(settings):
    """The run `two`, which keeps a burst going: nothing of it is answered."""
    job = await load_job(settings, "two", rows=3)
    yield job
    await job.redis.aclose()


async def forget(job) -> None:
    """Redis holds nothing of a run any more, as after a snapshot from before it."""
    keys = [key async for key in job.redis.scan_iter(f"*:{job.run}*")]
    await job.redis.delete(*keys)
    await job.redis.zrem(RUNS, job.run)


async def committed(job, count) -> None:
    async def enough() -> bool:
        return (await job.counts()).committed == count

    await eventually(enough, SECONDS)


def served(service) -> set[str]:
    return {sink.run for sink in service.sinks}


async def serving(lab, count=2):
    """Return a burst at its work, and its service, once it serves so many runs."""
    service = SinkService(lab.tools(), only=None, burst=True)
    task = lab.start(service.serve())
    await eventually(lambda: len(served(service)) == count, SECONDS)
    return task, service


async def lost_once_over(lab, service) -> None:
    """Wait until the run `one` is over; then Redis loses it, and `two` alone is served."""
    await eventually(lambda: [one for one in service.sinks if one.over], SECONDS)
    await forget(lab.job)
    await eventually(lambda: served(service) == {"two"}, SECONDS)


@pytest.mark.row("C4")
async def test_a_burst_whose_run_redis_lost_names_it_and_ends_with_4(processes):
    job = await processes.load("lost", rows=20)
    sink = processes.start("--burst", "--rows", "6", "--seconds", "1")
    await job.answer(await job.lease(6))
    await committed(job, 6)
    await job.redis.flushall()
    assert await sink.wait() == Exit.QUEUE
    assert "Redis lost run lost before the end of it." in sink.log()
    assert "gen-producer load --run lost " in sink.log()


@pytest.mark.row("C4")
async def test_a_burst_on_an_empty_redis_names_what_the_store_holds_unfinished(processes):
    job = await processes.load("early", rows=3)
    await processes.load("late", rows=3)
    await job.redis.flushall()
    sink = processes.start("--burst")
    assert await sink.wait() == Exit.QUEUE
    assert "holds 2 that are not finished: early, late." in sink.log()
    assert "gen-producer load --run early " in sink.log()


async def test_a_burst_on_an_empty_redis_whose_store_holds_finished_runs_only_is_done(processes):
    job = await processes.load("done", rows=3)
    await job.answer_all()
    assert await processes.start("--burst", "--seconds", "1").wait() == Exit.DONE
    await job.redis.flushall()
    assert await processes.start("--burst").wait() == Exit.DONE


@pytest.mark.row("C4")
async def test_the_other_runs_are_finished_before_a_lost_one_is_told(lab, other):
    task, _ = await serving(lab)
    await committed(lab.job, 2)
    await forget(lab.job)
    await other.answer_all()
    with pytest.raises(EpochError, match="Redis lost run one") as lost:
        await asyncio.wait_for(task, SECONDS)
    assert lost.value.exit_code == Exit.QUEUE
    assert "gen-producer load --run one" in lost.value.fix
    await proven(other)


@pytest.mark.row("C4")
async def test_a_lost_run_that_is_loaded_again_meanwhile_is_finished_as_if_nothing_was(
    lab, other, settings
):
    task, service = await serving(lab)
    await forget(lab.job)
    await eventually(lambda: served(service) == {"two"}, SECONDS)
    again = await load_job(settings, "one", rows=6)
    await again.answer_all()
    await committed(again, 6)
    await other.answer_all()
    await asyncio.wait_for(task, SECONDS)
    await proven(again)
    await again.redis.aclose()


@pytest.mark.row("C4")
async def test_a_run_that_was_finished_before_redis_lost_it_is_finished(lab, other):
    task, service = await serving(lab)
    await lab.job.answer_all()
    await lost_once_over(lab, service)
    await other.answer_all()
    await asyncio.wait_for(task, SECONDS)


@pytest.mark.row("C4")
async def test_dead_letters_of_a_run_that_redis_lost_since_are_told(lab, other):
    task, service = await serving(lab)
    await lab.job.bury(await lab.job.lease(1))
    await lab.job.answer_all()
    await lost_once_over(lab, service)
    await other.answer_all()
    with pytest.raises(DeadLettersError, match="one: 1"):
        await asyncio.wait_for(task, SECONDS)


async def test_nobody_waits_for_a_run_that_was_cancelled_and_then_lost(lab, other):
    task, service = await serving(lab)
    await lab.job.runs.cancel(lab.job.run)
    await lost_once_over(lab, service)
    await other.answer_all()
    await asyncio.wait_for(task, SECONDS)


@pytest.mark.row("C4")
async def test_a_run_that_was_named_is_waited_for(lab, settings):
    task = lab.start(SinkService(lab.tools(), only=lab.job.run, burst=True).serve())
    await committed(lab.job, 2)
    with structlog.testing.capture_logs() as logs:
        await forget(lab.job)
        await eventually(lambda: [one for one in logs if one["event"] == "sink.no_such_run"])
    assert not task.done()
    again = await load_job(settings, "one", rows=6)
    await again.answer_all()
    await asyncio.wait_for(task, SECONDS)
    await again.redis.aclose()


class Closed:
    """A store that does not let its folders be listed."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def folders(self):
        raise StoreError("Listing is refused.")


async def test_a_store_that_does_not_say_what_it_holds_is_no_empty_one(lab):
    await lab.job.redis.flushall()
    with pytest.raises(StoreError, match="Listing is refused"):
        await asyncio.wait_for(lab.finish(store=Closed(lab.job.store)), SECONDS)


async def test_of_many_unfinished_runs_some_are_named(lab):
    await lab.job.redis.flushall()
    for name in "abcdef":
        await asyncio.to_thread(store_run, lab.job.store, RunName(name), rows=1)
    with pytest.raises(QueueError, match=r"holds 7 .*: a, b, c, d, e and 2 more\."):
        await asyncio.wait_for(lab.finish(), SECONDS)
