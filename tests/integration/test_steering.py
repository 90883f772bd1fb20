"""RQ's own commands, as people type them, against a real consumer process."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from rq.command import send_shutdown_command, send_stop_job_command

from common.audit import check_counts
from common.errors import Exit
from common.ids import RunName, WorkerName, job_id, new_nonce
from common.keys import RQ_WORKERS, RunKeys
from common.records import Failure, Sampling, Verdict
from tests.support.consumers import ROOT, SECONDS
from tests.support.fake_engine import running_fake
from tests.support.servers import eventually


async def rq(world, *words):
    command = ("-m", "rq.cli", *words, "--url", world.url)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env=env, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


async def until(world, holds, run="one"):
    """Wait until it holds of the run's counts, which add up whenever they are looked at."""

    async def look():
        counts = await world.counts(run)
        assert check_counts(counts) == []
        return holds(counts)

    await eventually(look, SECONDS)


@pytest.mark.slow
@pytest.mark.row("D3")
async def test_rqs_commands_and_priorities_steer_a_real_consumer(world):
    queue = await world.load(300, sampling=Sampling(max_tokens=24))
    dead = (await queue.lease(WorkerName("auditor"), 1, request=new_nonce()))[0]
    why = Failure(dead.item, dead.token, Verdict.TOO_LONG, "too long", charged=True, final=True)
    await queue.fail(WorkerName("auditor"), [why])
    flags = ("--token-seconds", "0.02", "--answer-tokens", "100000")
    async with running_fake(world.folder, *flags, api_key="") as engine:
        with world.consume("--url", engine.url, GENQ_DRAIN_SECONDS="0.5") as process:
            await until(world, lambda c: c.generated > 0)

            await rq(world, "suspend")

            async def suspended():
                return [one.state for one in await world.runs.workers()] == ["suspended"]

            await eventually(suspended, SECONDS)
            await until(world, lambda c: c.leased == 0)
            made = (await world.counts()).generated
            await world.load(16, "two", sampling=Sampling(max_tokens=24))
            assert await world.runs.set_priority(RunName("two"), 5) == 0
            assert (await world.counts()).generated == made < 299

            await rq(world, "resume")
            await until(world, lambda c: c.generated == 16, "two")
            waiting = (await world.counts()).queued
            assert waiting > 200, "the younger run came first, by its priority"

            await rq(world, "requeue", "--queue", "one", job_id(RunName("one"), dead.item))
            await until(world, lambda c: c.dead == 0)
            job = world.sync.hget(f"{RunKeys(RunName('one')).job_prefix}{dead.item}", "status")
            assert job in (b"queued", b"started", b"finished")

            await world.load(1, "three", sampling=Sampling(max_tokens=9000))
            await world.runs.set_priority(RunName("three"), 9)
            await until(world, lambda c: c.leased == 1, "three")
            await world.running(engine, 1)
            send_stop_job_command(world.sync, "three-0")
            process.wait_for("item stopped by command", SECONDS)

            (worker,) = await world.runs.workers()
            send_shutdown_command(world.sync, worker.name)
            assert process.wait(SECONDS) == Exit.DONE
    await until(world, lambda c: (c.queued, c.leased) == (1, 0), "three")
    counts = await world.counts()
    assert check_counts(counts) == []
    assert (counts.leased, counts.dead, counts.failures) == (0, 0, {"too_long": 1})
    assert world.sync.smembers(RQ_WORKERS) == set()
