"""A sink's host whose disk is full, or not private: it keeps nothing there that it needs."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.support.servers import eventually
from tests.support.sinks import proven, sink_lab

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


@pytest.mark.row("E9")
async def test_a_state_folder_that_others_may_write_to_costs_the_sink_its_cache_only(lab):
    """At the start that is refused; in the middle of a commit it would be a result in hand."""
    job = await lab.load("shared", rows=8)
    sink = lab.start("--rows", "4", "--seconds", "1", "--burst")
    await job.answer(await job.lease(4))
    await eventually(lambda: committed(job, 4), 60)
    folder = Path(lab.env["GENQ_STATE_DIR"]) / "sink"
    folder.chmod(0o770)
    await job.answer_all()
    assert await sink.wait() == 0, sink.log()
    await proven(job)
    assert "sink.ledger_not_saved" in sink.log()
    assert "is not private" in sink.log()


async def committed(job, count):
    return (await job.counts()).committed == count
