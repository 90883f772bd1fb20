"""Runs made without a producer, and real consumers as processes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio

from common.codec import compress, decompress, dumps, loads
from common.errors import Exit
from common.ids import RunName, WorkerName, new_nonce
from common.keys import RunKeys
from common.objectstore import RunPaths
from common.prove import input_fingerprint
from common.queue.prompts import CHUNK_ITEMS, PromptQueue, QueueLimits
from common.queue.run_state import Runs
from common.records import Row, RunManifest, RunSettings, Sampling, ShardInfo
from consumer.start import Options, serve
from consumer.stopping import Stopping
from tests.support import forge
from tests.support.fake_engine import fake_state
from tests.support.servers import eventually, eventually_sync
from tests.support.tiny_tokenizer import build_model_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from common.audit import RunCounts
    from common.objectstore import ObjectStore
    from common.records import Leased
    from common.settings import Settings
    from consumer.engine.api import EngineSpec
    from consumer.engine.supervisor import StartBudget

SHARD_ROWS = 50
SECONDS = 80.0  # longest wait for consumers; one alone needs two, a crowded machine many more
ROOT = Path(__file__).parents[2]


def rows_of(*texts: str) -> list[Row]:
    return [
        Row(i=i, messages=[{"role": "user", "content": text}], id=f"row-{i}", metadata={"n": i})
        for i, text in enumerate(texts)
    ]


def store_rows(
    store: ObjectStore, run: str, rows: Sequence[Row], settings: RunSettings
) -> RunManifest:
    """Write shards and run.json as a producer does, and return the manifest."""
    texts = [
        b"".join(dumps(row) + b"\n" for row in rows[at : at + SHARD_ROWS])
        for at in range(0, len(rows), SHARD_ROWS)
    ]
    shards = [
        ShardInfo(
            name=f"{n:06}.jsonl.zst",
            first_row=n * SHARD_ROWS,
            rows=text.count(b"\n"),
            sha256=hashlib.sha256(text).hexdigest(),
        )
        for n, text in enumerate(texts)
    ]
    manifest = RunManifest(
        run=RunName(run),
        settings=settings,
        fingerprint=input_fingerprint(shard.sha256 for shard in shards),
        rows=len(rows),
        shard_rows=SHARD_ROWS,
        shards=shards,
        created="2026-01-01T00:00:00Z",
        source="test",
        genq_version="0",
    )
    paths = RunPaths(manifest.run)
    for n, text in enumerate(texts):
        store.put(paths.prompts(manifest.fingerprint, n), compress(text))
    store.put(paths.run_json, dumps(manifest))
    return manifest


async def enqueue_run(
    redis: redis.asyncio.Redis,
    manifest: RunManifest,
    *,
    priority: int = 0,
    limits: QueueLimits | None = None,
) -> PromptQueue:
    """Create the run in Redis, put all of its items on the queue, and open it."""
    limits = limits or QueueLimits()
    runs = Runs(redis, limits)
    info = await runs.create(manifest, priority=priority)
    queue = PromptQueue(redis, info.run, info.epoch, limits)
    for chunk in range(-(-manifest.items // CHUNK_ITEMS)):
        await queue.enqueue(chunk)
    await runs.open(info.run)
    return queue


def stream_results(client: redis.Redis, run: str) -> list[dict]:
    """Return the completions that wait in a run's stream, oldest first."""
    entries = client.xrange(RunKeys(RunName(run)).stream)
    return [loads(decompress(fields[b"p"], limit_bytes=1 << 26)) for _, fields in entries]


@dataclass
class ConsumerProcess:
    process: subprocess.Popen[bytes]
    log: Path

    def said(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def wait_for(self, text: str, seconds: float = 20.0) -> None:
        def ready() -> bool:
            assert self.process.poll() is None or self.said(text), self.log.read_text()
            return self.said(text)

        eventually_sync(ready, seconds)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.log.read_text()[-4000:]) from None


@contextlib.contextmanager
def consumer(
    env: dict[str, str], log: Path, *args: str, program: Sequence[str] = (), **extra: str
) -> Iterator[ConsumerProcess]:
    """Run ``gen-consumer ARGS``, or what ``program`` starts as it; ended at the end.

    An engine that it launches as SGLang is the stand-in.
    """
    settings = {"GENQ_LOG_FORMAT": "json", "GENQ_LEASE_SECONDS": "6", "GENQ_RENEW_SECONDS": "1"}
    settings["GENQ_HONESTY"] = "false"  # as in `World.serving`
    start, command = (
        (subprocess.Popen, [sys.executable, *program, *args])
        if program
        else (forge.Popen, ["gen-consumer", *args])
    )
    with log.open("ab") as file:
        process = start(
            command,
            env={**env, **settings, **extra},
            stdout=file,
            stderr=file,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        yield ConsumerProcess(process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@dataclass
class World:
    """The servers that a consumer works with, and what a test asks of them."""

    client: redis.asyncio.Redis
    sync: redis.Redis
    store: ObjectStore
    settings: Settings
    env: dict[str, str]
    folder: Path

    @property
    def model(self) -> str:
        return str(build_model_folder(self.folder / "tiny-model"))

    @property
    def url(self) -> str:
        return self.settings.redis_url.get_secret_value()

    def store_run(
        self, n: int, run: str = "one", *, texts: dict[int, str] | None = None, **settings: Any
    ) -> RunManifest:
        """``texts``: rows that ask something else than "question i"."""
        fields = {"model": self.model, "model_fingerprint": "", "sampling": Sampling(max_tokens=64)}
        fields["canary_rows"] = 0  # the stand-in is cut off and made to fail in many tests
        rows = rows_of(*[(texts or {}).get(i, f"question {i}") for i in range(n)])
        return store_rows(self.store, run, rows, RunSettings(**{**fields, **settings}))

    async def load(self, n: int, run: str = "one", **settings: Any) -> PromptQueue:
        return await enqueue_run(self.client, self.store_run(n, run, **settings))

    def consume(self, *args: str, log: str = "consumer.log", **more: Any) -> Any:
        return consumer(self.env, self.folder / log, "--model", self.model, *args, **more)

    @contextlib.asynccontextmanager
    async def serving(
        self,
        *,
        budget: StartBudget | None = None,
        gpu: int | None = None,
        honesty: bool = False,
        **options: Any,
    ) -> AsyncIterator[Serving]:
        """Run a consumer in this process; asked to stop at the end."""
        settings = self.settings.model_copy(
            update={
                "model": self.model,
                "drain_seconds": 0.2,
                "retry_base_seconds": 0.1,
                "honesty": honesty,  # off: tests count requests, and set faults for the first ones
            }
        )
        stopping = Stopping()
        serving = serve(settings, Options(gpu=gpu, **options), stopping=stopping, budget=budget)
        task = asyncio.create_task(serving)
        try:
            yield Serving(task, stopping)
        finally:
            stopping.ask(Exit.DONE)
            await asyncio.gather(task, return_exceptions=True)

    async def burst(self, *, seconds: float = SECONDS, **options: Any) -> Exit:
        async with self.serving(burst=True, **options) as serving:
            return await asyncio.wait_for(serving.task, seconds)

    async def counts(self, run: str = "one") -> RunCounts:
        return await self.runs.sample(RunName(run))

    @property
    def runs(self) -> Runs:
        return Runs(self.client, QueueLimits())

    async def generated(self, n: int, run: str = "one") -> None:
        async def all_done() -> bool:
            return (await self.counts(run)).generated == n

        await eventually(all_done, SECONDS)

    async def some_generated(self, n: int = 1, run: str = "one") -> None:
        async def enough() -> bool:
            return (await self.counts(run)).generated >= n

        await eventually(enough, SECONDS)

    async def running(self, engine: EngineSpec, n: int) -> None:
        async def has_some() -> bool:
            return len((await fake_state(engine))["running"]) >= n

        await eventually(has_some, SECONDS)

    def results(self, run: str = "one") -> list[dict[str, Any]]:
        return stream_results(self.sync, run)

    async def lease_all(self, queue: PromptQueue, n: int) -> list[Leased]:
        return await queue.lease(WorkerName("auditor"), n, request=new_nonce())


@contextlib.asynccontextmanager
async def world_of(
    settings: Settings, store: ObjectStore, env: dict[str, str], folder: Path
) -> AsyncIterator[World]:
    url = settings.redis_url.get_secret_value()
    async with redis.asyncio.Redis.from_url(url, socket_timeout=30) as client:
        with redis.Redis.from_url(url, socket_timeout=30) as sync:
            yield World(client, sync, store, settings, env, folder)


@dataclass
class Serving:
    """A consumer in this process."""

    task: asyncio.Task[Exit]
    stopping: Stopping
