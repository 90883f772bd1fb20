"""Whole consumers as processes: a stand-in engine, everything else real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import pytest
import redis
import redis.asyncio
from rq.command import send_shutdown_command, send_stop_job_command

from common.errors import Exit
from common.ids import RunName, WorkerName, item_of_job, new_nonce
from common.keys import RQ_WORKERS, RunKeys
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.run_state import Runs
from common.records import RunSettings, Sampling
from tests.support.consumers import ROOT, consumer, enqueue_run, rows_of, store_rows, stream_results
from tests.support.fake_engine import fake_state, running_fake, set_faults
from tests.support.servers import eventually
from tests.support.tiny_tokenizer import build_model_folder

if TYPE_CHECKING:
    from pathlib import Path

    from common.queue.prompts import Leased
    from consumer.engine.api import EngineSpec

ENDLESS = "100000"  # tokens: longer than any test


@dataclass
class World:
    """The servers that a consumer works with, and what a test asks of them."""

    client: redis.asyncio.Redis
    sync: redis.Redis
    store: object
    env: dict[str, str]
    folder: Path
    url: str

    @property
    def model(self) -> str:
        return str(build_model_folder(self.folder / "tiny-model"))

    def settings(self, **changes) -> RunSettings:
        fields = {"model": self.model, "model_fingerprint": "", "sampling": Sampling(max_tokens=64)}
        return RunSettings(**{**fields, **changes})

    async def load(self, n: int, run: str = "one", **settings) -> PromptQueue:
        rows = rows_of(*[f"question {i}" for i in range(n)])
        manifest = store_rows(self.store, run, rows, self.settings(**settings))
        return await enqueue_run(self.client, manifest)

    def consume(self, *args: str, log: str = "consumer.log", **env: str):
        return consumer(self.env, self.folder / log, "--model", self.model, *args, **env)

    async def counts(self, run: str = "one"):
        return await Runs(self.client, QueueLimits()).sample(RunName(run))

    def results(self, run: str = "one") -> list[dict]:
        return stream_results(self.sync, run)

    def worker(self) -> str:
        names = self.sync.smembers(RQ_WORKERS)
        return next(iter(names)).decode().rpartition(":")[2] if names else ""

    async def in_flight(self, n: int, run: str = "one") -> None:
        async def leased() -> bool:
            return (await self.counts(run)).leased >= n

        await eventually(leased, 20)

    async def running(self, engine: EngineSpec, n: int) -> None:
        async def has_some() -> bool:
            return len((await fake_state(engine))["running"]) >= n

        await eventually(has_some, 20)

    async def lease_all(self, queue: PromptQueue, n: int) -> list[Leased]:
        return await queue.lease(WorkerName("auditor"), n, request=new_nonce())


@pytest.fixture
async def world(redis_url, store, service_env, tmp_path):
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        with redis.Redis.from_url(redis_url) as sync:
            yield World(client, sync, store, service_env, tmp_path, redis_url)


@pytest.fixture
async def engine(world):
    async with running_fake(world.folder, api_key="") as spec:
        yield spec


@pytest.fixture
async def slow_engine(world):
    """Its answers never end by themselves."""
    flags = ("--token-seconds", "0.02", "--answer-tokens", ENDLESS)
    async with running_fake(world.folder, *flags, api_key="") as spec:
        yield spec


async def test_a_burst_answers_every_item_once_and_ends(world, engine) -> None:
    await world.load(120, samples=2)
    with world.consume("--url", engine.url, "--burst") as process:
        assert process.wait(40) == Exit.DONE
    results = world.results()
    assert sorted(r["k"] for r in results) == list(range(240))
    assert {r["verdict"] for r in results} <= {"ok", "truncated"}
    assert all(r["output_ids"] and r["content"] for r in results)
    assert len({r["seed"] for r in results}) == 240
    seen = await world.counts()
    assert (seen.generated, seen.queued, seen.leased) == (240, 0, 0)


async def test_sigterm_drains_and_charges_nothing(world, slow_engine) -> None:
    queue = await world.load(40, sampling=Sampling(max_tokens=2000))
    with world.consume("--url", slow_engine.url, GENQ_DRAIN_SECONDS="0.5") as process:
        await world.running(slow_engine, 8)
        process.signal(signal.SIGTERM)
        assert process.wait() == Exit.TERMINATED
    seen = await world.counts()
    assert (seen.queued, seen.leased, seen.waiting, seen.dead) == (40, 0, 0, 0)
    leased = await world.lease_all(queue, 40)
    assert {(lease.attempt, lease.delivery, lease.deaths) for lease in leased} == {(1, 1, 0)}
    assert (await fake_state(slow_engine))["running"] == []
    assert world.worker() == ""


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


async def test_a_second_signal_stops_now(world, slow_engine) -> None:
    await world.load(20, sampling=Sampling(max_tokens=2000))
    with world.consume("--url", slow_engine.url, GENQ_DRAIN_SECONDS="600") as process:
        await world.running(slow_engine, 8)
        process.signal(signal.SIGINT)
        process.wait_for("draining")
        process.signal(signal.SIGINT)
        began = time.monotonic()
        assert process.wait() == Exit.INTERRUPTED
        assert time.monotonic() - began < 10
    assert (await world.counts()).queued == 20


async def test_a_killed_consumers_items_come_back_and_its_engine_is_gone(world) -> None:
    await world.load(24, sampling=Sampling(max_tokens=40))
    slow = ("--", "--token-seconds", "1")
    lease = {"GENQ_LEASE_SECONDS": "2", "GENQ_RENEW_SECONDS": "0.5"}
    with world.consume("--max-running", "4", *slow, **lease) as process:
        await world.in_flight(4)
        children = psutil.Process(process.process.pid).children(recursive=True)
        assert children
        process.signal(signal.SIGKILL)
        process.wait()
    await eventually(lambda: not any(_alive(child) for child in children), 20)
    with world.consume("--burst", log="second.log", **lease) as process:
        assert process.wait(60) == Exit.DONE
    assert sorted(r["k"] for r in world.results()) == list(range(24))
    assert (await world.counts()).dead == 0


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_rq_info_lists_the_worker_with_its_counts(world, engine) -> None:
    await world.load(30)
    with world.consume("--url", engine.url) as process:

        async def all_done() -> bool:
            return (await world.counts()).generated == 30

        await eventually(all_done, 30)
        name = world.worker()
        info = subprocess.run(
            [sys.executable, "-m", "rq.cli", "info", "--url", world.url],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "200", "PATH": os.environ["PATH"]},
        ).stdout
        line = next(line for line in info.splitlines() if name in line)
        assert "one" in line
        assert "30" in line
        workers = await Runs(world.client, QueueLimits()).workers()
        assert [(w.name, w.finished, w.failed) for w in workers] == [(name, 30, 0)]
        gauges = workers[0].gauges
        assert gauges["model"] == world.model
        assert int(gauges["max_running"]) == 8
        process.signal(signal.SIGTERM)
        process.wait()


async def test_stop_job_gives_one_item_back_and_shutdown_drains(world, slow_engine) -> None:
    await world.load(1, sampling=Sampling(max_tokens=2000))
    with world.consume("--url", slow_engine.url, GENQ_DRAIN_SECONDS="0.2") as process:
        await world.running(slow_engine, 1)
        await eventually(world.worker)
        before = await fake_state(slow_engine)
        send_stop_job_command(world.sync, "one-0")
        process.wait_for("item stopped by command")

        async def aborted() -> bool:
            return before["running"] != (await fake_state(slow_engine))["running"]

        await eventually(aborted)
        send_shutdown_command(world.sync, world.worker())
        assert process.wait() == Exit.DONE
    seen = await world.counts()
    assert (seen.queued, seen.leased, seen.failures) == (1, 0, {})


async def test_rq_suspend_pauses_leasing_and_resume_goes_on(world, engine) -> None:
    with world.consume("--url", engine.url) as process:
        process.wait_for("engine ready")
        _rq("suspend", world.url)
        await world.load(10)

        async def suspended() -> bool:
            workers = await Runs(world.client, QueueLimits()).workers()
            return [w.state for w in workers] == ["suspended"]

        await eventually(suspended, 20)
        assert (await world.counts()).queued == 10
        _rq("resume", world.url)

        async def all_done() -> bool:
            return (await world.counts()).generated == 10

        await eventually(all_done, 20)
        process.signal(signal.SIGTERM)
        process.wait()


def _rq(command: str, url: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "rq.cli", command, "--url", url], check=True, capture_output=True
    )


async def test_an_engine_crash_charges_nobody_and_the_run_goes_on(world) -> None:
    await world.load(40)
    faults = '{"crash_on_request": 25, "crash_code": 137}'
    with world.consume("--burst", "--", "--faults", faults) as process:
        assert process.wait(60) == Exit.DONE
        assert process.said("exit code 137") or process.said("137")
    assert sorted(r["k"] for r in world.results()) == list(range(40))
    assert {r["attempt"] for r in world.results()} == {1}
    seen = await world.counts()
    assert seen.dead == 0
    assert set(seen.failures) <= {"engine_down"}


async def test_an_engine_that_fails_everything_is_no_black_hole(world) -> None:
    """It is condemned, leases nothing meanwhile, ends as FATAL, and has charged nobody."""
    queue = await world.load(500)
    with world.consume("--", "--faults", '{"fail_fast": true}') as process:
        assert process.wait(90) == Exit.ENGINE
        assert process.said("engine condemned")
    seen = await world.counts()
    assert (seen.queued, seen.dead, seen.waiting, seen.generated) == (500, 0, 0, 0)
    assert sum(seen.failures.values()) < 150
    leased = await world.lease_all(queue, 500)
    assert {lease.attempt for lease in leased} == {1}


async def test_busy_answers_shrink_the_window_and_charge_nobody(world, engine) -> None:
    await set_faults(engine, storm_status=503, storm_count=20)
    await world.load(60)
    with world.consume("--url", engine.url, "--burst") as process:
        assert process.wait(60) == Exit.DONE
    assert sorted(r["k"] for r in world.results()) == list(range(60))
    assert set((await world.counts()).failures) == {"busy"}


@pytest.mark.parametrize("answer", ["html", "swapped", "cut_body", "no_meta", "error"])
async def test_broken_answers_are_asked_for_again(world, engine, answer) -> None:
    await set_faults(engine, answer=answer, answer_count=4)
    await world.load(60)
    with world.consume("--url", engine.url, "--burst") as process:
        assert process.wait(60) == Exit.DONE
    assert sorted(r["k"] for r in world.results()) == list(range(60))
    assert {r["attempt"] for r in world.results()} == {1}


async def test_empty_answers_are_charged_and_tried_again(world, engine) -> None:
    await set_faults(engine, empty_answers=5)
    await world.load(30)
    retry = {"GENQ_RETRY_BASE_SECONDS": "0.1"}
    with world.consume("--url", engine.url, "--burst", **retry) as process:
        assert process.wait(60) == Exit.DONE
    results = world.results()
    assert sorted(r["k"] for r in results) == list(range(30))
    assert sorted(r["attempt"] for r in results if r["attempt"] > 1)
    assert (await world.counts()).failures == {"empty": 5}


async def test_results_survive_a_redis_that_lost_everything(world, slow_engine) -> None:
    rows = rows_of("a", "b", "c")
    manifest = store_rows(
        world.store, "one", rows, world.settings(sampling=Sampling(max_tokens=300))
    )
    await enqueue_run(world.client, manifest)
    with world.consume("--url", slow_engine.url) as process:
        await world.running(slow_engine, 3)
        await world.client.flushall()
        process.wait_for("results are kept until it is loaded again", 30)
        await enqueue_run(world.client, manifest)

        async def all_done() -> bool:
            return (await world.counts()).generated == 3

        await eventually(all_done, 30)
        process.signal(signal.SIGTERM)
        process.wait()
    assert sorted(r["k"] for r in world.results()) == [0, 1, 2]


async def test_rq_worker_pool_gives_each_worker_a_gpu_of_its_own(world) -> None:
    await world.load(60, run="pooled")
    env = {
        **world.env,
        "GENQ_GPUS": "0,1",
        "GENQ_MODEL": world.model,
        "GENQ_LOG_FORMAT": "json",
        "PYTHONPATH": str(ROOT),
    }
    command = [
        sys.executable,
        "-m",
        "rq.cli",
        "worker-pool",
        "pooled",
        "-n",
        "2",
        "--url",
        world.url,
    ]
    command += ["-w", "tests.support.fake_consumer.Worker"]
    with (world.folder / "pool.log").open("wb") as log:
        pool = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:

        async def both_up() -> bool:
            workers = await Runs(world.client, QueueLimits()).workers()
            return sorted(w.gauges.get("gpu", "") for w in workers) == ["0", "1"]

        async def all_done() -> bool:
            return (await world.counts("pooled")).generated == 60

        await eventually(both_up, 40)
        await eventually(all_done, 40)
        pool.send_signal(signal.SIGINT)
        pool.wait(30)
    except BaseException:
        print((world.folder / "pool.log").read_text()[-6000:])
        raise
    finally:
        if pool.poll() is None:
            os.killpg(pool.pid, signal.SIGKILL)
            pool.wait()
    await eventually(lambda: not world.sync.smembers(RQ_WORKERS))


def test_a_job_id_names_its_item() -> None:
    assert item_of_job(RunName("one"), "one-0") == 0
    assert RunKeys(RunName("one")).queue.endswith("one")
