"""The whole pipeline in one process, with its Redis behind a proxy: for faults of Redis.

Real parts: Valkey, S3 server, the stand-in engine's HTTP server, the consumer, the sink.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import redis.asyncio

from common.audit import check_counts
from common.errors import EpochError, QueueError
from common.ids import RunName
from common.objectstore import RunPaths
from common.prove import prove
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.run_state import Runs
from common.redis_client import open_client
from common.s3 import open_store
from common.settings import Settings, load_settings
from consumer.sink.service import SinkService
from consumer.sink.start import _tools
from tests.support.consumers import World, enqueue_run, world_of
from tests.support.fake_engine import running_fake
from tests.support.servers import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from common.audit import RunCounts
    from common.prove import Proof
    from common.records import RunManifest
    from consumer.engine.api import EngineSpec

LEASE_SECONDS = 2.0
QUICK = {
    "lease_seconds": LEASE_SECONDS,
    "renew_seconds": 0.5,
    "retry_base_seconds": 0.1,
    "sink_rows": 7,
    "sink_seconds": 0.5,
}
RUN = "faulty"


@dataclass
class Rig:
    """What a test holds in its hands."""

    world: World
    engine: EngineSpec
    settings: Settings
    audit: redis.asyncio.Redis  # straight to the server
    manifest: RunManifest | None = None
    said: list[str] = field(default_factory=list)
    stops: list[asyncio.Event] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def load(self, rows: int, **more: Any) -> None:
        self.manifest = self.world.store_run(rows, RUN, **more)
        await enqueue_run(self.audit, self.manifest)

    async def load_again(self) -> None:
        """What `load --run` does when Redis has lost the run, or a part of it."""
        from common.prove import committed_items  # noqa: PLC0415 - the same
        from producer.load.enqueue import Enqueuer  # noqa: PLC0415 - used here only

        await self.audit.connection_pool.disconnect(inuse_connections=False)
        committed = await asyncio.to_thread(committed_items, self.world.store, self.manifest)
        enqueuer = Enqueuer(self.audit, QueueLimits(), self.manifest, warn=self.said.append)
        await enqueuer.enqueue(priority=0, committed=committed, progress=lambda _done: None)

    def start_sink(self, name: str = "sink", *, url: str = "", **more: Any) -> asyncio.Task[None]:
        settings = self.settings
        if url:
            settings = load_settings(**{**settings.model_dump(), "redis_url": url})
        client, stop = open_client(settings, name="sink"), asyncio.Event()
        store = open_store(settings)
        tools = _tools(settings, client, store, consumer=name, stop=stop, say=self.said.append)

        async def serve() -> None:
            try:
                await SinkService(tools, only=RunName(RUN), burst=True).serve()
            finally:
                await client.aclose()

        self.stops.append(stop)
        self.tasks.append(asyncio.create_task(serve()))
        return self.tasks[-1]

    async def stop_sinks(self) -> None:
        for stop in self.stops:
            stop.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def counts(self) -> RunCounts:
        """Ask until Redis answers: it may have just come back."""

        async def ask() -> RunCounts | None:
            try:
                return await Runs(self.audit, QueueLimits()).sample(RunName(RUN))
            except QueueError as error:
                if isinstance(error, EpochError):
                    raise
                return None

        return await eventually(ask, 20)

    async def audited(self) -> RunCounts:
        """Return the counts, and check that each item is in one place."""
        counts = await self.counts()
        assert check_counts(counts) == []
        return counts

    def stored(self) -> int:
        """Return how many parts storage holds."""
        return len(list(self.world.store.list(RunPaths(RunName(RUN)).data_prefix)))

    async def committed(self, count: int, seconds: float = 90) -> None:
        async def enough() -> bool:
            return (await self.counts()).committed >= count

        await eventually(enough, seconds)

    async def finished(self, task: asyncio.Task[None], seconds: float = 90) -> Proof:
        """Wait for the sink to end the run, and check the books in Redis and in storage."""
        await asyncio.wait_for(task, seconds)
        counts = await self.audited()
        assert (counts.state, counts.committed, counts.dead) == ("closed", counts.total, 0)
        proof = await asyncio.to_thread(prove, self.world.store, RunName(RUN))
        assert proof.problems == []
        assert (proof.complete, proof.unique, proof.committed) == (True, True, counts.total)
        return proof


@asynccontextmanager
async def pipeline(
    url: str,
    store_settings: dict[str, str],
    folder: Path,
    *engine_flags: str,
    direct: str = "",
    **settings: Any,
) -> AsyncIterator[Rig]:
    """``url``: as services reach Redis; ``direct``: as the audit does, past all faults."""
    given = load_settings(
        redis_url=url, state_dir=folder / "state", **store_settings, **{**QUICK, **settings}
    )
    store = open_store(given)
    flags = engine_flags or ("--token-seconds", "0.005", "--answer-tokens", "40")
    async with (
        world_of(given, store, {}, folder) as world,
        running_fake(folder, *flags, api_key="") as engine,
        redis.asyncio.Redis.from_url(direct or url, socket_timeout=30) as audit,
    ):
        rig = Rig(world, engine, given, audit)
        try:
            yield rig
        finally:
            await rig.stop_sinks()


def quick_outages(monkeypatch) -> None:
    """Look again often, so that tests need not wait for what would be seconds in production."""
    monkeypatch.setattr("consumer.sink.outage.LONGEST_SECONDS", 0.5)
    monkeypatch.setattr("consumer.leases.outbox.LONGEST_WAIT_SECONDS", 0.5)
    monkeypatch.setattr("consumer.daemon.REAP_SECONDS", 0.3)
    monkeypatch.setattr("consumer.sink.service.REAP_SECONDS", 0.3)
    monkeypatch.setattr("consumer.leases.keeper.RETRY_SECONDS", 0.3)


async def reaped(rig: Rig) -> int:
    """Let another host's reaper, which Redis can hear, take back what has expired."""
    (info,) = await Runs(rig.audit, QueueLimits()).list()
    limits = QueueLimits(lease_seconds=LEASE_SECONDS)
    return (await PromptQueue(rig.audit, info.run, info.epoch, limits).reap()).expired


def past(seconds: float):
    """Return a condition that holds once so much time has gone by: the length of a fault."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until
