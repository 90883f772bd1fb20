"""Consumers as processes of their own: signals, kill -9, and RQ's pool; a stand-in generates."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from common.audit import check_counts
from common.errors import Exit
from common.keys import RQ_WORKERS, worker_key
from common.records import Sampling
from consumer.display import FATAL_SECONDS
from tests.support import forge
from tests.support.consumers import ROOT, SECONDS
from tests.support.crew import Crew
from tests.support.failpoints import points_of
from tests.support.fake_engine import fake_state, running_fake
from tests.support.pages import Page
from tests.support.servers import eventually

if TYPE_CHECKING:
    from tests.support.crew import Member

LONG = Sampling(max_tokens=3000)
QUICK_LEASES = {"GENQ_LEASE_SECONDS": "2", "GENQ_RENEW_SECONDS": "0.5"}
MOMENTS = 50  # at which a consumer is killed; its run takes longer than the last of them
MOMENT_SECONDS = 2.5


@pytest.mark.row("A3")
async def test_sigterm_drains_and_charges_nothing(world, slow_engine) -> None:
    queue = await world.load(40, sampling=LONG)
    with world.consume("--url", slow_engine.url, GENQ_DRAIN_SECONDS="0.5") as process:
        await world.running(slow_engine, 8)
        process.signal(signal.SIGTERM)
        assert process.wait() == Exit.TERMINATED
    seen = await world.counts()
    assert (seen.queued, seen.leased, seen.waiting, seen.dead) == (40, 0, 0, 0)
    leased = await world.lease_all(queue, 40)
    assert {(lease.attempt, lease.delivery, lease.deaths) for lease in leased} == {(1, 1, 0)}
    assert world.sync.smembers(RQ_WORKERS) == set()

    async def aborted() -> bool:
        return (await fake_state(slow_engine))["running"] == []

    await eventually(aborted)


async def test_what_can_be_finished_within_the_grace_is(world) -> None:
    flags = ("--token-seconds", "0.05", "--answer-tokens", "30")
    async with running_fake(world.folder, *flags, api_key="") as engine:
        await world.load(30)
        with world.consume("--url", engine.url, GENQ_DRAIN_SECONDS="60") as process:
            await world.running(engine, 8)
            process.signal(signal.SIGINT)
            assert process.wait() == Exit.INTERRUPTED
    seen = await world.counts()
    assert seen.generated >= 8
    assert (seen.generated + seen.queued, seen.leased) == (30, 0)


@pytest.mark.row("A3")
async def test_a_second_signal_stops_now(world, slow_engine) -> None:
    await world.load(20, sampling=LONG)
    with world.consume("--url", slow_engine.url, GENQ_DRAIN_SECONDS="600") as process:
        await world.running(slow_engine, 8)
        process.signal(signal.SIGINT)
        process.wait_for("draining")
        process.signal(signal.SIGINT)
        assert process.wait() == Exit.INTERRUPTED  # in far less than the ten minutes of the drain
    assert (await world.counts()).queued == 20


@pytest.mark.row("A1")
@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.faults] * (n > 1)) for n in range(1, MOMENTS + 1)]
)
async def test_a_killed_consumers_items_come_back_and_its_engine_is_gone(world, seed) -> None:
    await world.load(24, sampling=Sampling(max_tokens=40))
    crew = Crew({**world.env, **QUICK_LEASES, "GENQ_HONESTY": "false"}, world.folder / "crew")
    command = ("gen-consumer", "--model", world.model, "--max-running", "4", "--")
    first = crew.start("first", *command, "--token-seconds", "0.03")
    try:
        engine = await _killed_in_mid_generation(world, first, seed)
        crew.start("second", *command)
        await eventually(lambda: not any(_alive(process) for process in engine), 20)
        await world.generated(24)
    finally:
        codes = await crew.end()
    assert codes == {"second": Exit.TERMINATED}, crew.last_words()
    await eventually(lambda: not crew.leftovers())
    assert sorted(result["k"] for result in world.results()) == list(range(24))
    counts = await world.counts()
    assert check_counts(counts) == []
    assert counts.dead == 0


async def _killed_in_mid_generation(world, consumer: Member, seed: int) -> list[psutil.Process]:
    """Kill it at a moment that the seed draws; return what it had started."""

    async def full() -> bool:
        assert consumer.alive, consumer.last_words()
        return (await world.counts()).leased >= 4

    await eventually(full, SECONDS)
    moment = random.Random(f"A1 {seed}").uniform(0, MOMENT_SECONDS)
    await asyncio.sleep(moment)  # lasts: the generation, until the kill
    children = psutil.Process(consumer.pids[-1]).children(recursive=True)
    consumer.signal(signal.SIGKILL)
    assert await consumer.ended() == -signal.SIGKILL
    counts = await world.counts()
    assert children
    assert counts.leased > 0, f"seed {seed}: nothing was being generated {moment:.2f} s on"
    assert check_counts(counts) == []
    return children


@pytest.mark.row("A1")
@pytest.mark.parametrize(
    "failpoint",
    [
        pytest.param(name, marks=[pytest.mark.faults] * ("before" in name))
        for name in points_of("test_a_consumer_killed_as_it_hands_over_loses_and_repeats_nothing")
    ],
)
async def test_a_consumer_killed_as_it_hands_over_loses_and_repeats_nothing(
    world, failpoint
) -> None:
    await world.load(24)
    with world.consume(**QUICK_LEASES, GENQ_FAILPOINT=failpoint) as process:
        assert process.wait(100) == -signal.SIGKILL
    taken = {result["k"] for result in world.results()}
    assert bool(taken) == ("after" in failpoint)
    with world.consume(log="second.log", **QUICK_LEASES):
        await world.generated(24)
    assert sorted(result["k"] for result in world.results()) == list(range(24))
    counts = await world.counts()
    assert check_counts(counts) == []
    assert counts.dead == 0


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def pool(world, run: str, workers: int):
    """RQ's own command with our class, two GPUs to give away."""
    env = {
        **world.env,
        "GENQ_GPUS": "0,1",
        "GENQ_MODEL": world.model,
        "GENQ_LOG_FORMAT": "json",
        "PYTHONPATH": str(ROOT),
    }
    command = ["-m", "rq.cli", "worker-pool", run, "-n", str(workers), "--url", world.url]
    command += ["-w", "tests.support.fake_consumer.Worker"]
    with (world.folder / "pool.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def test_rq_worker_pool_gives_each_worker_a_gpu_of_its_own(world) -> None:
    async with pool(world, "pooled", 2) as process:

        async def both_up() -> bool:
            gpus = [w.gauges.get("gpu") for w in await world.runs.workers()]
            return sorted(gpu or "" for gpu in gpus) == ["0", "1"]

        await eventually(both_up, 60)
        await world.load(60, "pooled")
        await world.generated(60, "pooled")
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            await process.wait()
    await eventually(lambda: not world.sync.smembers(RQ_WORKERS))


async def test_an_engine_that_was_given_up_is_seen_until_another_consumer_has_its_place(
    world,
) -> None:
    await world.load(5)
    with world.consume("--", "--no-such-flag") as process:
        assert await asyncio.to_thread(process.wait, 100) == Exit.ENGINE
    (worker,) = await world.runs.workers()
    assert FATAL_SECONDS - 60 < world.sync.ttl(worker_key(worker.name)) <= FATAL_SECONDS
    page = Page(await told(world, "exporter", "--once"))
    (place,) = (labels["worker"] for labels in page.labels("genq_worker_info"))
    assert page("genq_worker_engine_state", worker=place, state="fatal") == 1
    assert page("genq_run_workers", run="one") == 0
    assert "one  stalled: all engines have failed" in await told(world, "status", "one")
    for key in (RQ_WORKERS, f"{RQ_WORKERS}:one"):
        world.sync.sadd(key, worker_key("ended"))  # as one whose record's time is over
    with world.consume(log="next.log"):
        await world.generated(5)
        await eventually(lambda: not_registered(world, "ended"))

        async def ready() -> Page | None:
            page = Page(await told(world, "exporter", "--once"))
            is_ready = page("genq_worker_engine_state", worker=place, state="ready")
            return page if is_ready else None

        page = await eventually(ready, 60)
        assert page("genq_worker_engine_state", worker=place, state="fatal") == 0
        assert "fatal" not in await told(world, "status", "one")


async def not_registered(world, name: str) -> bool:
    keys = (RQ_WORKERS, f"{RQ_WORKERS}:one")
    return not any(world.sync.sismember(key, worker_key(name)) for key in keys)


async def told(world, *words: str) -> str:
    done = await asyncio.to_thread(
        forge.run, ["gen-producer", *words], env=world.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done
    return done.stdout
