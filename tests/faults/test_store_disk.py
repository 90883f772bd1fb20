"""A full disk on the sink's host: it keeps nothing there that it needs."""

from __future__ import annotations

import resource

import pytest

from tests.support.servers import eventually
from tests.support.sinks import sink_lab

LIMIT_BYTES = 2048  # the ledger of the run below has more


@pytest.fixture
async def lab(settings, service_env):
    async with sink_lab(settings, service_env) as made:
        yield made


@pytest.mark.row("E9")
async def test_a_full_disk_costs_the_sink_its_cache_and_its_log_and_nothing_else(lab):
    """No file of the process may grow, as when nothing is left; each write fails."""
    job = await lab.load("full-disk", rows=20, samples=1000)
    sink = lab.start("--rows", "20", "--seconds", "1")
    await job.answer(await job.lease(20))
    await eventually(lambda: committed(job, 20), 60)
    resource.prlimit(sink.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
    for done in (40, 60, 80):
        await job.answer(await job.lease(20))
        await eventually(lambda done=done: committed(job, done), 60)
    assert "sink.ledger_not_saved" in sink.log()
    assert len(sink.log()) <= LIMIT_BYTES


async def committed(job, count):
    return (await job.counts()).committed == count
