"""Runs that are over cost a service next to nothing, and are taken up when somebody opens one."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
import redis
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from common.ids import Item, RunName, job_id
from common.objectstore import RunPaths
from consumer.sink import rest
from consumer.sink.service import SinkService
from tests.support.queues import manifest
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab, proven

MANY = 20
SECONDS = 30
LOOKS = 6  # as many seconds


class Counted:
    """A store that counts the calls of each kind."""

    def __init__(self, store):
        self._store = store
        self.calls = Counter()

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if callable(found):
            self.calls[name] += 1
        return found


@pytest.fixture
def sync(redis_url):
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        yield client


@pytest.fixture(autouse=True)
def long_rests(monkeypatch):
    """What wakes a sink is not its own next look."""
    monkeypatch.setattr(rest, "FIRST_SECONDS", 600.0)


@asynccontextmanager
async def over_runs(settings, count):
    """A lab whose runs are over: finished, but for every fourth one, which was cancelled."""
    jobs = [await load_job(settings, f"run-{n}", rows=1) for n in range(count)]
    for n, job in enumerate(jobs):
        await (job.answer_all() if n % 4 else job.runs.cancel(job.run))
    async with local_lab(settings, jobs[0]) as lab:
        await lab.finish(stop=asyncio.Event())
        yield lab
    for job in jobs[1:]:
        await job.redis.aclose()


async def resting(lab, count, **more) -> SinkService:
    """Return a service whose sinks have nothing left to do."""
    service = SinkService(lab.tools(**more), only=None, burst=False)
    lab.start(service.serve())

    def all_rest() -> bool:
        return len(service.sinks) == count and all(one.over for one in service.sinks)

    await eventually(all_rest, SECONDS)
    return service


async def calls_while_idle(sync) -> Counter:
    """Return what Redis was asked for during some looks at the list of runs."""
    sync.config_resetstat()

    def calls() -> Counter:
        stats = sync.info("commandstats")
        return Counter({name[len("cmdstat_") :]: one["calls"] for name, one in stats.items()})

    await eventually(lambda: calls()["zrange"] >= LOOKS, SECONDS)
    return calls()


async def test_an_idle_sink_asks_next_to_nothing_about_runs_that_are_over(settings, sync):
    async with over_runs(settings, MANY) as lab:
        store = Counted(lab.job.store)
        service = await resting(lab, MANY, store=store)
        heads = store.calls["stat"]
        calls = await calls_while_idle(sync)
        assert calls["evalsha"] + calls["evalsha_ro"] <= 2 * MANY  # one last look, each
        assert calls["hgetall"] <= MANY * (LOOKS + 1)
        assert calls["xreadgroup"] + calls["xautoclaim"] == 0
        assert store.calls["stat"] == heads
        assert all(sink._open is None for sink in service.sinks)
        later = await calls_while_idle(sync)
        assert later["evalsha"] + later["evalsha_ro"] == 0
        assert later["hgetall"] <= MANY * LOOKS * 0.7
        assert store.calls["stat"] == heads


async def test_a_new_sink_asks_storage_five_times_about_a_run_whose_end_stands(settings):
    """What the end tells is compared with what Redis knows, and the parts are not looked at."""
    job = await load_job(settings, "one", rows=3)
    await job.answer_all()
    async with local_lab(settings, job) as lab:
        await lab.finish(stop=asyncio.Event())
        store = Counted(job.store)
        await resting(lab, 1, store=store)
        assert store.calls == {"get": 1, "stat": 4}


async def test_an_idle_consumer_reads_runs_that_are_over_now_and_then(world, engine, sync):
    many = 5 * MANY
    for n in range(many):
        await world.runs.create(manifest(1, run=RunName(f"run-{n}"), model=world.model))
        await world.runs.cancel(RunName(f"run-{n}"))
    await world.load(1)
    async with world.serving(url=engine.url):
        await world.generated(1)
        calls = await calls_while_idle(sync)
        assert calls["hgetall"] <= many * LOOKS * 0.7


async def rq_requeue(lab, sync) -> None:
    registry = FailedJobRegistry(lab.job.run, connection=sync, serializer=JSONSerializer)
    await asyncio.to_thread(registry.requeue, job_id(lab.job.run, Item(0)))


async def our_requeue(lab, _sync) -> None:
    job = lab.job
    await asyncio.to_thread(job.store.delete, RunPaths(job.run).success)
    await job.runs.reopen(job.run)
    assert await job.runs.requeue(job.run) == 1


@pytest.mark.row("D3")
@pytest.mark.parametrize("requeue", [rq_requeue, our_requeue])
async def test_a_dead_letter_that_is_queued_again_wakes_a_sink_that_rests(settings, sync, requeue):
    job = await load_job(settings, "one", rows=3)
    await job.bury(await job.lease(1))
    await job.answer_all()
    async with local_lab(settings, job) as lab:
        await resting(lab, 1)
        assert await asyncio.to_thread(job.store.stat, RunPaths(job.run).success) is not None
        await requeue(lab, sync)
        await eventually(lambda: queued_again(job))
        await job.answer_all()
        await eventually(lambda: finished(job), SECONDS)
        await proven(job)


async def queued_again(job) -> bool:
    counts = await job.counts()
    return counts.state == "open" and counts.queued == 1


async def finished(job) -> bool:
    return (await asyncio.to_thread(job.store.stat, RunPaths(job.run).success)) is not None


async def test_a_cancelled_run_that_is_loaded_again_wakes_a_sink_that_rests(settings):
    job = await load_job(settings, "one", rows=4)
    await job.answer(await job.lease(2))
    await job.runs.cancel(job.run)
    async with local_lab(settings, job) as lab:
        await resting(lab, 1)
        await job.runs.reopen(job.run)
        await job.queue.enqueue(0)
        assert (await job.counts()).queued == 2
        await job.answer_all()
        await eventually(lambda: finished(job), SECONDS)
        await proven(job)


async def test_a_run_that_was_loaded_into_an_empty_redis_gets_a_new_sink(settings, sync):
    async with over_runs(settings, 4) as lab:
        await resting(lab, 4)
        sync.flushall()
        job = await load_job(settings, "run-1", rows=1)
        await job.answer_all()
        await eventually(lambda: is_closed(job), SECONDS)
        await job.redis.aclose()


async def is_closed(job) -> bool:
    return (await job.counts()).state == "closed"
