"""Services beside a run that only a person lets go on: they say so, once, with the command."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from common.errors import Exit
from common.ids import RunName
from common.keys import RQ_SUSPENDED
from common.queue.scripts import ANY_EPOCH, Scripts
from consumer.sink.service import SinkService
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab, proven

RUN = RunName("one")
STOPS = ("held", "paused", "suspended")
SECONDS = 30


async def stop_one(runs, client, how):
    """Stop run one; return the command that lets it go on."""
    if how == "held":
        await runs.hold(RUN, "87 % are empty")
        return "gen-producer resume one --accept"
    if how == "paused":
        await runs.pause(RUN)
        return "gen-producer resume one"
    await client.set(RQ_SUSPENDED, 1)
    return "rq resume"


@pytest.mark.parametrize("how", STOPS)
async def test_a_sink_that_waits_for_a_person_says_so_once_and_ends_when_it_goes_on(settings, how):
    job = await load_job(settings, "one", rows=4)
    await job.answer(await job.lease(2))
    fix = await stop_one(job.runs, job.redis, how)
    async with local_lab(settings, job) as lab:
        with structlog.testing.capture_logs() as logs:
            sink = lab.start(SinkService(lab.tools(), only=RUN, burst=True).serve())
            said = await eventually(lambda: [one for one in logs if one["event"] == "sink.waiting"])
            await eventually(lambda: any(one["event"] == "sink.committed" for one in logs))
            assert not sink.done()
            await (job.redis.delete(RQ_SUSPENDED) if how == "suspended" else job.runs.accept(RUN))
            await eventually(lambda: any(one["event"] == "sink.goes_on" for one in logs))
            await job.answer_all()
            await asyncio.wait_for(sink, SECONDS)
        await proven(job)
    assert [one for one in logs if one["event"] == "sink.waiting"] == said[:1]
    assert how in said[0]["what"]
    assert said[0]["fix"].startswith(fix)
    assert said[0]["why"]


async def test_a_sink_does_not_say_of_a_run_that_was_cancelled_that_it_goes_on(settings):
    job = await load_job(settings, "one", rows=4)
    await job.answer(await job.lease(2))
    await stop_one(job.runs, job.redis, "held")
    async with local_lab(settings, job) as lab:
        with structlog.testing.capture_logs() as logs:
            sink = lab.start(SinkService(lab.tools(), only=RUN, burst=True).serve())
            await eventually(lambda: any(one["event"] == "sink.waiting" for one in logs))
            await job.runs.cancel(RUN)
            await asyncio.wait_for(sink, SECONDS)
    assert not [one for one in logs if one["event"] == "sink.goes_on"]


async def test_a_burst_does_not_wait_for_what_a_cancel_that_was_killed_has_left(settings):
    job = await load_job(settings, "one", rows=8)
    answered, *_ = await job.lease(3)
    await job.answer([answered])
    assert await Scripts(job.redis, RUN, ANY_EPOCH).call("cancel", 1) > 0  # one of each place
    counts = await job.counts()
    assert (counts.state, counts.queued, counts.leased) == ("cancelled", 4, 1)
    async with local_lab(settings, job) as lab:
        await asyncio.wait_for(lab.finish(), SECONDS)
        counts = await job.counts()
    assert (counts.generated, counts.committed) == (0, 1)


@pytest.mark.parametrize("how", STOPS)
async def test_a_consumer_that_may_lease_nothing_until_a_person_says_so_tells_it_as_it_ends(
    world, engine, how
):
    await world.load(2)
    fix = await stop_one(world.runs, world.client, how)
    with structlog.testing.capture_logs() as logs:
        assert await world.burst(url=engine.url) == Exit.DONE
    said = [one for one in logs if one["event"] == "run left alone"]
    assert len(said) == 1
    assert how in said[0]["what"]
    assert said[0]["fix"].startswith(fix)
