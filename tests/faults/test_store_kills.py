"""Sinks that die while a part is on its way, or before it is acknowledged."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from common.objectstore import RunPaths
from common.parts import SUFFIXES
from tests.support.s3_exchange import CREATE
from tests.support.servers import eventually
from tests.support.sinks import proven, sink_lab

FLAGS = ("--rows", "8", "--seconds", "0.5", "--burst")
MOMENTS = ("half sent", "arrives before the next sink starts", "arrives when all is done")


@pytest.fixture
async def lab(settings, service_env):
    async with sink_lab(settings, service_env) as made:
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
async def test_a_sink_killed_while_its_part_is_on_the_way(lab, store_proxy, moment, suffix):
    job = await lab.load("under-way", rows=20)
    await job.answer_all()
    fault = "half" if moment == MOMENTS[0] else "hold"
    store_proxy.fail(fault, on={CREATE}, path="/data/", times=1)
    flags = (*FLAGS, "--format", suffix)
    sink = lab.start(*flags, GENQ_S3_ENDPOINT=store_proxy.url)
    await eventually(lambda: store_proxy.held or store_proxy.count(fault="half"), 60)
    sink.signal(signal.SIGKILL)
    assert await sink.wait() == -signal.SIGKILL
    part = RunPaths(job.run).part(0, suffix)
    assert job.store.stat(part) is None
    if moment == MOMENTS[1]:
        store_proxy.mend()
        await eventually(lambda: job.store.stat(part))
    assert await lab.start(*flags).wait() == 0
    before = await proven(job)
    store_proxy.mend()
    await eventually(lambda: not store_proxy.busy)
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
async def test_a_large_part_leaves_no_upload_behind_when_its_sink_is_killed(lab, store_proxy):
    """Parts are written by one PUT each, whatever their size: there is nothing to sweep up."""
    job = await lab.load("one-put", rows=8)
    await job.answer(await job.lease(8), content=os.urandom(1 << 20).hex())
    store_proxy.fail("half", on={CREATE}, path="/data/", times=1)
    flags = ("--format", "jsonl.zst", *FLAGS)
    sink = lab.start(*flags, GENQ_S3_ENDPOINT=store_proxy.url)
    await eventually(lambda: store_proxy.count(fault="half"), 60)
    sink.signal(signal.SIGKILL)
    await sink.wait()
    keys = [one.key for one in await asyncio.to_thread(lambda: list(job.store.list(job.run)))]
    assert not [key for key in keys if "/data/" in key]
    assert await lab.start(*flags, GENQ_S3_ENDPOINT=store_proxy.url).wait() == 0
    await proven(job)
    assert not [one for one in store_proxy.seen if "uploads" in one.query.lower()]


@pytest.mark.row("E7")
async def test_a_second_signal_does_not_wait_for_a_store_that_does_not_answer(lab, store_proxy):
    job = await lab.load("silent", rows=20)
    await job.answer_all()
    store_proxy.fail("black hole", on={CREATE}, path="/data/")
    sink = lab.start(*FLAGS, GENQ_S3_ENDPOINT=store_proxy.url)
    await eventually(lambda: store_proxy.count(fault="black hole"), 60)
    sink.signal(signal.SIGTERM)
    sink.signal(signal.SIGINT)
    assert await sink.wait(100) in (130, 143)
    store_proxy.mend()
    assert await lab.start(*FLAGS).wait() == 0
    await proven(job)
