"""The end of a run that is opened and closed again while sinks sleep, race, or are killed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from common.errors import DeadLettersError
from common.objectstore import RunPaths
from common.parts.chain import format_key
from common.prove import committed_items
from common.queue.run_state import Runs
from consumer.sink import rest
from consumer.sink.service import SinkService
from producer.console import Console
from producer.steer.dead_letters import run_requeue
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab, proven

SECONDS = 30
LAST_OBJECTS = ("failed", "manifest", "readme", "success")


@pytest.fixture
async def lab(settings):
    """A run whose one dead letter is all that its sinks cannot store."""
    job = await load_job(settings, "endings", rows=5)
    await job.bury(await job.lease(1))
    await job.answer_all()
    async with local_lab(settings, job) as made:
        yield made


class Gate:
    """A store that holds the first manifest back, as if the sink was stopped before it."""

    def __init__(self, store) -> None:
        self._store = store
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put(self, key, data, **more) -> None:
        if key.endswith("/manifest.json"):
            self.reached.set()
            assert self.opened.wait(SECONDS)
        self._store.put(key, data, **more)


async def finish_with_a_dead_letter(lab) -> None:
    with pytest.raises(DeadLettersError):
        await lab.finish(stop=asyncio.Event())
    await proven(lab.job, dead=1)


async def reopen_and_answer(job) -> None:
    await job.runs.reopen(job.run)
    assert await job.runs.requeue(job.run) == 1
    await job.answer_all()


async def finish(lab) -> None:
    await lab.finish(stop=asyncio.Event(), consumer="another")
    await proven(lab.job)


def marked(job) -> bool:
    return job.store.stat(RunPaths(job.run).success) is not None


@pytest.mark.row("E2")
@pytest.mark.parametrize("names", [LAST_OBJECTS, *[(name,) for name in LAST_OBJECTS]])
async def test_the_end_of_an_earlier_closing_is_written_anew(lab, names):
    job, paths = lab.job, RunPaths(lab.job.run)
    await finish_with_a_dead_letter(lab)
    keys = [getattr(paths, name) for name in names]
    earlier = [(key, job.store.get(key), job.store.stat(key).metadata) for key in keys]
    await reopen_and_answer(job)
    await finish(lab)
    for key, data, metadata in earlier:  # by a sink that slept, and was killed then
        job.store.put(key, data, metadata=metadata)
    await finish(lab)


@pytest.mark.row("E2")
async def test_success_does_not_outlive_the_opening_of_its_run(lab):
    job = lab.job
    await finish_with_a_dead_letter(lab)
    await job.runs.reopen(job.run)
    assert await job.runs.requeue(job.run) == 1
    assert marked(job)
    lab.start(SinkService(lab.tools(), only=None, burst=False).serve())
    await eventually(lambda: asyncio.to_thread(lambda: not marked(job)), SECONDS)
    await job.answer_all()
    await eventually(lambda: asyncio.to_thread(marked, job), SECONDS)
    await proven(job)


@pytest.mark.row("E2")
async def test_a_sink_that_slept_as_it_wrote_the_end_writes_the_newest_one(lab):
    job, gate = lab.job, Gate(lab.job.store)
    zombie = lab.tools(store=gate, consumer="zombie")
    lab.start(SinkService(zombie, only=None, burst=False).serve())
    assert await asyncio.to_thread(gate.reached.wait, SECONDS)
    await reopen_and_answer(job)
    await finish(lab)
    gate.reached.clear()
    gate.opened.set()
    assert await asyncio.to_thread(gate.reached.wait, SECONDS)  # once more, after it looked
    await eventually(lambda: asyncio.to_thread(marked, job), SECONDS)
    await proven(job)


async def test_an_end_that_a_killed_requeue_took_away_is_written_again(lab, monkeypatch):
    job = lab.job
    monkeypatch.setattr(rest, "FIRST_SECONDS", 0.1)
    lab.start(SinkService(lab.tools(), only=None, burst=False).serve())
    await eventually(lambda: asyncio.to_thread(marked, job), SECONDS)
    job.store.delete(RunPaths(job.run).success)
    await eventually(lambda: asyncio.to_thread(marked, job), SECONDS)
    await proven(job, dead=1)


async def test_a_deleted_format_is_told_by_the_parts(lab):
    job, key = lab.job, format_key(RunPaths(lab.job.run))
    await finish_with_a_dead_letter(lab)
    job.store.delete(key)
    assert sum(byte.bit_count() for byte in committed_items(job.store, job.manifest)) == 4
    await reopen_and_answer(job)
    await lab.finish(stop=asyncio.Event(), suffix="parquet")  # the run's parts are of the other
    await proven(job)
    assert job.store.stat(key) is not None


async def test_requeue_wins_against_a_sink_that_ends_the_run_meanwhile(lab, monkeypatch):
    job, reopen, quick = lab.job, Runs.reopen, [True]
    await finish_with_a_dead_letter(lab)

    async def late(runs, run):
        job.store.put(RunPaths(run).success, b"{}")
        await reopen(runs, run)
        if quick:
            quick.pop()
            assert await runs.close(run)

    monkeypatch.setattr(Runs, "reopen", late)
    console = Console(json=True)
    await asyncio.to_thread(
        run_requeue, job.run, lab.settings, console, reason=None, ids=(), dry_run=False
    )
    assert not marked(job)
    counts = await job.counts()
    assert (counts.state, counts.queued, counts.dead) == ("open", 1, 0)
