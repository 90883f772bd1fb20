"""The store is away for hours: the stream fills to its mark, and then the consumers wait."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import stamina

from common.errors import Exit, StoreError
from common.ids import RunName
from common.objectstore import RunPaths
from common.s3 import open_store
from consumer.sink import outage
from consumer.sink.batcher import Bounds
from tests.support.consumers import SECONDS, world_of
from tests.support.fake_engine import running_fake
from tests.support.s3_exchange import GET
from tests.support.servers import eventually
from tests.support.sinks import Job, LocalLab, proven

ITEMS = 120
MARK = 20  # results that may wait for the sink
HOUR = 3600.0


class FakeTime:
    """The clock of an outage: a pause takes no time, and is counted."""

    def __init__(self):
        self.seconds = 0.0
        self.leaps = True

    async def pause(self, stop, seconds):
        if self.leaps:
            self.seconds += seconds
            seconds = 0.0
        await real_pause(stop, seconds)


real_pause = outage.pause


@pytest.fixture
async def world(settings, store, service_env, tmp_path):
    settings = settings.model_copy(update={"stream_entries": MARK})
    async with world_of(settings, store, service_env, tmp_path) as made:
        yield made


@pytest.fixture
async def lab(world, store_proxy):
    """A run that a consumer answers, and a sink that reaches the store through the store_proxy."""
    queue = await world.load(ITEMS)
    manifest = world.store_run(ITEMS)
    store = open_store(world.settings.model_copy(update={"s3_endpoint": store_proxy.url}))
    info = await world.runs.get(manifest.run)
    job = Job(world.client, store, world.runs, queue, manifest, info)
    made = LocalLab(world.settings, job)
    yield made
    made.stop.set()
    for task in made.tasks:
        task.cancel()


@pytest.mark.row("E13")
async def test_an_outage_of_an_hour_stops_consumers_at_the_mark_and_loses_nothing(
    world, lab, store_proxy, monkeypatch
):
    clock = FakeTime()
    monkeypatch.setattr(outage, "pause", clock.pause)
    job = lab.job
    async with running_fake(world.folder, api_key="") as engine:
        store_proxy.fail("reset")
        with stamina.set_testing(True, attempts=1):  # the hour is that of the outer retries
            sink = lab.start(lab.finish(bounds=Bounds(rows=10, seconds=1)))
            async with world.serving(url=engine.url):
                await eventually(lambda: full(job), 60)
                waiting = await job.counts()
                assert waiting.generated < MARK + 40  # the mark, and what was in flight then
                await eventually(lambda: clock.seconds > HOUR, 60)
                now = await job.counts()
                assert (now.generated, now.leased) == (waiting.generated, 0)
                assert now.queued == ITEMS - waiting.generated
                clock.leaps = False
                store_proxy.mend()
                await sink
    await proven(job)


async def full(job):
    counts = await job.counts()
    return counts.generated >= MARK and not counts.leased


@pytest.mark.row("E3")
@pytest.mark.parametrize("failure", ["reset", "503"])
async def test_a_burst_outlasts_a_store_that_does_not_say_what_its_run_is(
    world, engine, store_proxy, failure
):
    await world.load(10)
    settings = world.settings.model_copy(update={"s3_endpoint": store_proxy.url})
    store_proxy.fail(failure, on={GET}, path="/run.json")
    with stamina.set_testing(True, attempts=1):
        serving = replace(world, settings=settings).serving(burst=True, url=engine.url)
        async with serving as burst:
            await eventually(lambda: store_proxy.count(GET, fault=failure) > 2, 60)
            assert not burst.task.done()
            store_proxy.mend()
            assert await asyncio.wait_for(burst.task, SECONDS) == Exit.DONE
    assert (await world.counts()).generated == 10


async def test_a_burst_ends_with_the_error_of_a_run_that_cannot_be_read_after_all_others(
    world, engine
):
    for run in ("gone", "one"):
        await world.load(5, run)
    world.store.delete(RunPaths(RunName("gone")).run_json)
    with pytest.raises(StoreError, match=r"gone/run\.json is not there"):
        await world.burst(url=engine.url)
    assert (await world.counts()).generated == 5
