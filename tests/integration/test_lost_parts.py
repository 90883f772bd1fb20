"""Parts that are deleted while their run goes on: no gap is written, and they are made again."""

from __future__ import annotations

import asyncio

import pytest

from common.objectstore import RunPaths
from common.parts.chain import part_number
from common.queue.prompts import PromptQueue
from consumer.sink import run
from consumer.sink.batcher import Bounds
from consumer.sink.service import SinkService
from tests.support.failpoints import one_now, points_of
from tests.support.loads import RUN
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab, proven

ROWS = 12  # and five a part at most
SECONDS = 30
SUFFIX = "jsonl.zst"
PATHS = RunPaths(RUN)


@pytest.fixture(autouse=True)
def soon_again(monkeypatch):
    monkeypatch.setattr(run, "BROKEN_SECONDS", 0.05)


@pytest.fixture
async def lab(settings, request):
    """A sink at work, which has stored the first two parts, five items each.

    Results that do not fill a part wait for a second, or as long as the test says.
    """
    job = await load_job(settings, RUN, rows=ROWS)
    async with local_lab(settings, job) as made:
        bounds = Bounds(rows=5, seconds=getattr(request, "param", 1.0))
        made.service = SinkService(made.tools(bounds=bounds), only=None, burst=False)
        made.start(made.service.serve())
        for stored in (5, 10):
            await store(job, 5, stored)
        yield made


async def store(job, count, stored):
    """Answer items, and wait until so many are committed."""

    async def is_stored():
        return (await job.counts()).committed == stored

    await job.answer(await job.lease(count))
    await eventually(is_stored, SECONDS)


async def look_anew(lab):
    """Take the run as Redis has it now: a load may have given it another epoch."""
    job = lab.job
    job.info = await job.runs.get(job.run)
    job.queue = PromptQueue(job.redis, job.run, job.info.epoch, lab.settings.limits())


def parts(job):
    found = [part_number(PATHS, stat.key) for stat in job.store.list(PATHS.data_prefix)]
    return [number for number, _ in found]


async def mend_and_finish(lab, ask, *, lost):
    """Load the run, as the messages say; the sink that is at work ends it then."""
    job = lab.job
    said = await ask("load", "--run", RUN)
    assert f"{lost} ids were lost and are queued again" in said.out
    assert f"Note: {lost} completions of run {RUN} are gone" in said.err
    assert "already loaded, 0 new" in (await ask("load", "--run", RUN)).out
    await look_anew(lab)
    await job.answer_all()
    await eventually(lambda: asyncio.to_thread(job.store.stat, PATHS.success), SECONDS)
    await proven(job)
    assert parts(job) == list(range(len(parts(job))))


async def test_the_last_part_of_a_run_that_goes_on_is_made_again(lab, ask):
    job = lab.job
    job.store.delete(PATHS.part(1, SUFFIX))
    await mend_and_finish(lab, ask, lost=5)


async def test_parts_deleted_as_the_message_says_are_made_again_while_the_run_goes_on(lab, ask):
    job = lab.job
    await store(job, 1, 11)
    job.store.delete(PATHS.part(1, SUFFIX))
    assert "delete it and all parts behind it" in (await ask("load", "--run", RUN, code=9)).err
    job.store.delete(PATHS.part(2, SUFFIX))
    await mend_and_finish(lab, ask, lost=6)


async def test_a_sink_leaves_no_gap_where_its_last_part_was_deleted(lab, ask):
    job = lab.job
    job.store.delete(PATHS.part(1, SUFFIX))
    await store(job, 1, 11)  # into the place of the one that is gone
    assert parts(job) == [0, 1]
    await mend_and_finish(lab, ask, lost=5)


@pytest.mark.parametrize("lab", [600.0], indirect=True)
async def test_what_a_sink_has_in_hand_when_a_load_mends_its_run_makes_no_gap(lab, ask):
    """The run gets another epoch: what a sink then stores without Redis is behind the lost part."""
    job = lab.job
    await job.answer(await job.lease(1))
    await eventually(lambda: lab.service.sinks[0].in_hand == 1, SECONDS)
    job.store.delete(PATHS.part(1, SUFFIX))
    await mend_and_finish(lab, ask, lost=5)


@pytest.mark.parametrize(
    "name", one_now(points_of("test_a_mending_load_killed_in_the_middle_goes_on"))
)
async def test_a_load_killed_while_it_mends_a_run_that_goes_on_is_repeated(
    lab, ask, producer, name
):
    job = lab.job
    job.store.delete(PATHS.part(1, SUFFIX))
    await asyncio.to_thread(producer.killed_at, name, "load", "--run", RUN)
    await mend_and_finish(lab, ask, lost=5)
