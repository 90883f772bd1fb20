"""Sinks that die while a part is on its way, or before it is acknowledged."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from common.objectstore import RunPaths
from common.parts import SUFFIXES
from tests.support.forge import running_forge
from tests.support.s3_proxy import CREATE, s3_proxy
from tests.support.servers import eventually
from tests.support.sinks import proven, sink_lab

FLAGS = ("--rows", "8", "--seconds", "0.5", "--burst")
MOMENTS = ("half sent", "arrives before the next sink starts", "arrives when all is done")


@pytest.fixture(scope="module")
def forge():
    with running_forge() as made:
        yield made


@pytest.fixture
def proxy(s3_server):
    with s3_proxy(s3_server) as made:
        yield made


@pytest.fixture
async def lab(forge, settings, service_env):
    async with sink_lab(forge, settings, service_env) as made:
        yield made


CASES = [
    pytest.param(
        moment,
        suffix,
        marks=[] if (moment, suffix) == (MOMENTS[2], "parquet") else pytest.mark.faults,
    )
    for moment in MOMENTS
    for suffix in SUFFIXES
]


@pytest.mark.row("E1")
@pytest.mark.parametrize(("moment", "suffix"), CASES)
async def test_a_sink_killed_while_its_part_is_on_the_way(lab, proxy, moment, suffix):
    job = await lab.load("under-way", rows=20)
    await job.answer_all()
    fault = "half" if moment == MOMENTS[0] else "hold"
    proxy.fail(fault, on={CREATE}, path="/data/", times=1)
    flags = (*FLAGS, "--format", suffix)
    sink = lab.start(*flags, GENQ_S3_ENDPOINT=proxy.url)
    await eventually(lambda: proxy.held or proxy.count(fault="half"), 60)
    sink.signal(signal.SIGKILL)
    assert await sink.wait() == -signal.SIGKILL
    part = RunPaths(job.run).part(0, suffix)
    assert job.store.stat(part) is None
    if moment == MOMENTS[1]:
        proxy.mend()
        await eventually(lambda: job.store.stat(part))
    assert await lab.start(*flags).wait() == 0
    before = await proven(job)
    proxy.mend()
    await eventually(lambda: not proxy.busy)
    assert (await proven(job)).parts == before.parts


@pytest.mark.row("E1")
async def test_a_batch_that_a_dead_sink_had_stored_is_only_acknowledged(lab):
    """It died between the PUT and the commit; the next one runs on another host."""
    job = await lab.load("stored", rows=8)
    await job.answer_all()
    flags = ("--rows", "8", "--seconds", "0.2", "--burst")
    sink = lab.start(*flags, failpoint="sink.commit.before")
    assert await sink.wait() == -signal.SIGKILL, sink.log()
    assert (await job.counts()).generated == 8
    sink = lab.start(*flags, state="-b")
    assert await sink.wait() == 0, sink.log()
    assert (await proven(job)).parts == 1


@pytest.mark.row("E14")
async def test_a_large_part_leaves_no_upload_behind_when_its_sink_is_killed(lab, proxy):
    """Parts are written by one PUT each, whatever their size: there is nothing to sweep up."""
    job = await lab.load("one-put", rows=8)
    await job.answer(await job.lease(8), content=os.urandom(1 << 20).hex())
    proxy.fail("half", on={CREATE}, path="/data/", times=1)
    flags = ("--format", "jsonl.zst", *FLAGS)
    sink = lab.start(*flags, GENQ_S3_ENDPOINT=proxy.url)
    await eventually(lambda: proxy.count(fault="half"), 60)
    sink.signal(signal.SIGKILL)
    await sink.wait()
    keys = [one.key for one in await asyncio.to_thread(lambda: list(job.store.list(job.run)))]
    assert not [key for key in keys if "/data/" in key]
    assert await lab.start(*flags, GENQ_S3_ENDPOINT=proxy.url).wait() == 0
    await proven(job)
    assert not [one for one in proxy.seen if "uploads" in one.query.lower()]
