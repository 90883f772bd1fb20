"""Redis goes back to an earlier end of a run: what storage holds since is told to it again."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from common import codec
from common.objectstore import ObjectMissingError, RunPaths
from common.settings import load_settings
from consumer.sink.finish import CLOSING
from consumer.sink.service import SinkService
from producer.console import Console
from producer.steer.dead_letters import run_requeue
from tests.faults.rig import quick_outages
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab, proven

SECONDS = 60
DEAD = 3
LAST_OBJECTS = ("failed", "manifest", "readme", "success")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quick_outages(monkeypatch)


@asynccontextmanager
async def closed_with_dead_letters(frail, store_settings, tmp_path):
    """A lab whose run is closed with dead letters, as the snapshot that is kept knows it."""
    settings = load_settings(redis_url=frail.url, state_dir=tmp_path / "state", **store_settings)
    job = await load_job(settings, "ended", rows=10)
    await job.bury(await job.lease(DEAD))
    await job.answer_all()
    async with local_lab(settings, job) as lab:
        serve(lab)
        await eventually(lambda: ended(job, dead=DEAD), SECONDS)
        await proven(job, dead=DEAD)
        frail.keep()
        yield lab


def serve(lab, **more) -> SinkService:
    service = SinkService(lab.tools(**more), only=None, burst=False)
    lab.start(service.serve())
    return service


async def ended(job, *, dead: int) -> bool:
    """Whether Redis and storage tell of the same end, with so many dead letters."""
    counts = await job.counts()
    try:
        data = await asyncio.to_thread(job.store.get, RunPaths(job.run).success)
    except ObjectMissingError:  # none yet, or it is just written anew
        return False
    told = codec.loads(data)
    same = counts.state == "closed" and told["closing"] == counts.closing
    return same and (told["dead"], counts.dead, counts.open) == (dead, dead, 0)


async def make_the_dead_ones(lab) -> None:
    job = lab.job
    console = Console(json=True)
    await asyncio.to_thread(
        run_requeue, job.run, lab.settings, console, reason=None, ids=(), dry_run=False
    )
    await job.answer_all()
    await eventually(lambda: ended(job, dead=0), SECONDS)


async def go_back(lab, frail) -> None:
    """Put the snapshot back, and wait until it answers."""
    await asyncio.to_thread(frail.go_back)
    await lab.job.redis.connection_pool.disconnect(inuse_connections=False)


@pytest.mark.row("C2")
async def test_a_live_sink_tells_an_older_snapshot_of_a_closed_run_what_is_stored(
    frail, store_settings, tmp_path
):
    """Else status and failed would tell of dead letters whose answers are stored, for ever."""
    async with closed_with_dead_letters(frail, store_settings, tmp_path) as lab:
        await make_the_dead_ones(lab)
        await go_back(lab, frail)
        await eventually(lambda: ended(lab.job, dead=0), SECONDS)
        await proven(lab.job)
        assert await lab.job.runs.dead_items(lab.job.run) == {}


@pytest.mark.row("C2")
async def test_a_new_sink_believes_no_end_that_tells_more_than_redis_knows(
    frail, store_settings, tmp_path
):
    """The end of this very closing stands: it was written over a Redis that had gone back."""
    async with closed_with_dead_letters(frail, store_settings, tmp_path) as lab:
        job, paths = lab.job, RunPaths(lab.job.run)
        earlier = (await job.counts()).closing
        await make_the_dead_ones(lab)
        lab.stop.set()
        await asyncio.gather(*lab.tasks)
        await go_back(lab, frail)
        for key in (getattr(paths, name) for name in LAST_OBJECTS):
            data = job.store.get(key)
            if key == paths.success:
                data = codec.dumps(codec.loads(data) | {"closing": earlier})
            job.store.put(key, data, metadata={CLOSING: earlier})
        lab.stop.clear()
        serve(lab)
        await eventually(lambda: ended_anew(job, earlier), SECONDS)
        await proven(job)


async def ended_anew(job, earlier: str) -> bool:
    return (await job.counts()).closing != earlier and await ended(job, dead=0)
