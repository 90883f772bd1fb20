"""Runs full of results for sink tests, and sinks: in this process, or gen-sink as a subprocess."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.audit import check_counts
from common.failpoint import VARIABLE
from common.ids import Item, RunName, Token, WorkerName, new_nonce
from common.objectstore import RunPaths
from common.parts.chain import fix_format
from common.prove import Proof, prove
from common.queue.prompts import CHUNK_ITEMS, PromptQueue
from common.queue.run_state import Runs
from common.records import Failure, Finished, Verdict
from common.redis_client import open_client
from common.s3 import open_store
from consumer.sink.batcher import Bounds
from consumer.sink.service import SinkService
from consumer.sink.tools import Tools
from tests.support import forge
from tests.support.completions import completion, payload
from tests.support.runs import store_run
from tests.support.servers import eventually

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence

    import redis.asyncio

    from common.objectstore import ObjectStore
    from common.records import RunInfo, RunManifest
    from common.settings import Settings

WORKER = WorkerName("gpu0@tests")


@dataclass
class Job:
    """A loaded run, and the hands of a consumer on it."""

    redis: redis.asyncio.Redis
    store: ObjectStore
    runs: Runs
    queue: PromptQueue
    manifest: RunManifest
    info: RunInfo

    @property
    def run(self) -> RunName:
        return self.manifest.run

    async def lease(self, count: int) -> list[tuple[Item, Token]]:
        leased = await self.queue.lease(WORKER, count, request=new_nonce())
        return [(one.item, one.token) for one in leased]

    async def answer(self, leased: Iterable[tuple[Item, Token]], **more: Any) -> None:
        """Hand in a completion for each; ``payloads`` replaces some of them."""
        payloads = more.pop("payloads", {})
        batch = [
            Finished(
                item,
                token,
                Verdict.OK,
                payloads.get(item) or payload(completion(item, **more)),
                3,
                2,
            )
            for item, token in leased
        ]
        for at in range(0, len(batch), 16):
            await self.queue.complete(WORKER, batch[at : at + 16], request=new_nonce())

    async def bury(self, leased: Iterable[tuple[Item, Token]]) -> None:
        """Dead-letter items."""
        for item, token in leased:
            failure = Failure(item, token, Verdict.TOO_LONG, "too long", charged=True, final=True)
            await self.queue.fail(WORKER, [failure])

    async def answer_all(self, **more: Any) -> None:
        while leased := await self.lease(100):
            await self.answer(leased, **more)

    async def store_format(self, suffix: str) -> None:
        """Fix the run's format, as its first sink does."""
        await asyncio.to_thread(fix_format, self.store, RunPaths(self.run), suffix)

    async def counts(self) -> Any:
        return await self.runs.sample(self.run)


async def load_job(
    settings: Settings,
    name: str,
    *,
    rows: int,
    samples: int = 1,
    store: Any = None,
    kept_in: str = "",
) -> Job:
    """Load a run as the producer does; ``kept_in``: the store's URL, as Redis is told it."""
    redis = open_client(settings, name="tests")
    store = store or open_store(settings)
    manifest = await asyncio.to_thread(store_run, store, RunName(name), rows=rows, samples=samples)
    runs = Runs(redis, settings.limits())
    info = await runs.create(manifest, store=kept_in)
    queue = PromptQueue(redis, info.run, info.epoch, settings.limits())
    for chunk in range(-(-manifest.items // CHUNK_ITEMS)):
        await queue.enqueue(chunk)
    await runs.open(info.run)
    return Job(redis, store, runs, queue, manifest, info)


async def proven(job: Job, *, dead: int = 0) -> Proof:
    """Check that a run is finished, that storage proves it, and that the queue's books agree."""
    proof = await asyncio.to_thread(prove, job.store, job.run)
    stored = job.manifest.items - dead
    assert (proof.problems, proof.complete, proof.unique) == ([], True, True)
    assert (proof.committed, proof.dead) == (stored, dead)
    counts = await job.counts()
    assert check_counts(counts) == []
    assert (counts.state, counts.committed, counts.dead) == ("closed", stored, dead)
    return proof


@asynccontextmanager
async def local_lab(settings: Settings, job: Job) -> AsyncIterator[LocalLab]:
    """Sinks of one job in this process; all are stopped at the end."""
    lab = LocalLab(settings, job)
    try:
        yield lab
    finally:
        lab.stop.set()
        await asyncio.gather(*lab.tasks, return_exceptions=True)
        await job.redis.aclose()


@dataclass
class LocalLab:
    """A job, and what sinks in this process need for it."""

    settings: Settings
    job: Job
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    said: list[str] = field(default_factory=list)
    tasks: list[asyncio.Task] = field(default_factory=list)

    def start(self, serving: Coroutine) -> asyncio.Task:
        task = asyncio.create_task(serving)
        self.tasks.append(task)
        return task

    async def finish(self, **more: Any) -> None:
        """Serve until the run is finished, as gen-sink --burst does."""
        await SinkService(self.tools(**more), only=None, burst=True).serve()

    def tools(self, **more: Any) -> Tools:
        given = {
            "redis": self.job.redis,
            "runs": self.job.runs,
            "limits": self.settings.limits(),
            "store": self.job.store,
            "bounds": Bounds(rows=5, seconds=1),
            "suffix": "jsonl.zst",
            "folder": self.settings.state_dir,
            "consumer": "sink-test",
            "claim_seconds": 60.0,
            "stop": self.stop,
            "clock": time.monotonic,
            "say": self.said.append,
            "redis_calls": asyncio.Semaphore(8),
        }
        return Tools(**(given | more))


@asynccontextmanager
async def sink_lab(settings: Settings, env: dict[str, str]) -> AsyncIterator[SinkLab]:
    """Jobs and sinks for one test; all are ended with it."""
    lab = SinkLab(settings, env)
    try:
        yield lab
    finally:
        for sink in lab.sinks:
            sink.end()
        for job in lab.jobs:
            await job.redis.aclose()


@dataclass
class SinkLab:
    """Makes what one test needs."""

    settings: Settings
    env: dict[str, str]
    jobs: list[Job] = field(default_factory=list)
    sinks: list[SinkProcess] = field(default_factory=list)

    async def load(self, name: str, *, rows: int, samples: int = 1) -> Job:
        job = await load_job(self.settings, name, rows=rows, samples=samples)
        self.jobs.append(job)
        return job

    def start(self, *flags: str, failpoint: str = "", state: str = "", **env: str) -> SinkProcess:
        """Start a sink; another ``state`` is another host's."""
        more = {"GENQ_STATE_DIR": self.env["GENQ_STATE_DIR"] + state, "GENQ_LOG_FORMAT": "json"}
        sink = SinkProcess({**self.env, **more, VARIABLE: failpoint, **env}, flags)
        self.sinks.append(sink)
        return sink


class SinkProcess:
    """gen-sink in a process of its own."""

    def __init__(self, env: dict[str, str], flags: Sequence[str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="genq-sink-"))
        with (self._folder / "stdout").open("w") as out, (self._folder / "stderr").open("w") as err:
            self._process = forge.Popen(["gen-sink", *flags], env=env, stdout=out, stderr=err)
        self.pid = self._process.pid

    async def wait(self, seconds: float = 90.0) -> int:
        """Return the exit code, negative for a signal."""
        try:
            await eventually(lambda: self._process.poll() is not None, seconds)
            return int(self._process.returncode)
        except AssertionError:
            raise AssertionError(f"gen-sink did not end:\n{self.log()}") from None

    def output(self) -> str:
        return (self._folder / "stdout").read_text()

    def log(self) -> str:
        return (self._folder / "stderr").read_text()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(10)
        shutil.rmtree(self._folder)
