"""From settings to a running sink: connections, checks, a name, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from common.errors import Exit
from common.patience import once_there
from common.queue.run_state import Runs
from common.redis_client import connect, log_weakness
from common.s3 import open_store
from common.telemetry.metrics import serve_metrics
from common.telemetry.pulse import beating
from consumer.sink.batcher import Bounds
from consumer.sink.identity import Identity
from consumer.sink.metrics import SinkMetrics
from consumer.sink.service import SinkService
from consumer.sink.single import SingleWriterStore, WriterLease
from consumer.sink.tools import Tools

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis.asyncio

    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.settings import Settings

log = structlog.get_logger()
REDIS_CALLS = 16  # at a time; the client has twice as many connections
CLAIM_PARTS = 3  # results count as left behind after the time that so many parts may take


async def run_sink(
    settings: Settings,
    *,
    only: RunName | None,
    burst: bool,
    single_writer: bool,
    say: Callable[[str], None],
) -> Exit:
    """Serve until a signal, or in burst mode until the runs are finished; return the exit code.

    Raises:
        QueueError: Redis cannot be used; at the start only, and in single-writer mode also where
            it is away for so long that the lease is no longer sure.
        StoreError: object storage cannot be used, or ignores conditions; at the start only.
        ConflictError: single-writer mode, and another sink is at work, or took the lease.
        DeadLettersError, VerifyError: burst mode; see SinkService.
    """
    stop = asyncio.Event()
    store: ObjectStore = open_store(settings)  # a missing name is said before any wait for Redis
    async with AsyncExitStack() as cleanup:
        redis = await once_there(
            lambda: connect(settings, name="sink", writes=True, warn=log_weakness),
            seconds=settings.wait_seconds,
        )
        cleanup.push_async_callback(redis.aclose)
        lease = WriterLease(redis) if single_writer else None
        if lease is not None:
            store = SingleWriterStore(store, lease)
        await once_there(lambda: asyncio.to_thread(store.probe), seconds=settings.wait_seconds)
        got = _stop_at_signals(stop)  # not before: a signal must end the waiting above at once
        if lease is not None:
            await _hold(lease, stop, cleanup)
        identity = Identity(settings.state_dir / "sink")
        cleanup.callback(identity.close)
        tools = _tools(settings, redis, store, consumer=identity.name, stop=stop, say=say)
        log.info("sink.started", consumer=identity.name, store=store.url)
        service = SinkService(tools, only=only, burst=burst)
        pulse = await cleanup.enter_async_context(beating())
        with serve_metrics(settings, SinkMetrics(service, tools).read, healthy=lambda: pulse.alive):
            await service.serve()
        log.info("sink.stopped")
        if lease is not None and lease.lost is not None and not got:
            raise lease.lost
    return got[0] if got else Exit.DONE


def _tools(
    settings: Settings,
    redis: redis.asyncio.Redis,
    store: ObjectStore,
    *,
    consumer: str,
    stop: asyncio.Event,
    say: Callable[[str], None],
) -> Tools:
    limits = settings.limits()
    return Tools(
        redis=redis,
        runs=Runs(redis, limits),
        limits=limits,
        store=store,
        bounds=Bounds(
            rows=settings.sink_rows, bytes=settings.sink_bytes, seconds=settings.sink_seconds
        ),
        suffix=settings.sink_format,
        folder=settings.state_dir / "sink",
        consumer=consumer,
        claim_seconds=CLAIM_PARTS * settings.sink_seconds + 5,
        stop=stop,
        clock=time.monotonic,
        say=say,
        redis_calls=asyncio.Semaphore(REDIS_CALLS),
    )


def _stop_at_signals(stop: asyncio.Event) -> list[Exit]:
    """Set ``stop`` at SIGTERM and SIGINT; return a list that will hold the exit code.

    A second signal ends the process on the spot: a call to a store that does not answer cannot be
    called off, and to be killed costs a sink nothing.
    """
    got: list[Exit] = []

    def handle(code: Exit) -> None:
        if got:
            os._exit(code)
        got.append(code)
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, handle, Exit.TERMINATED)
    loop.add_signal_handler(signal.SIGINT, handle, Exit.INTERRUPTED)
    return got


async def _hold(lease: WriterLease, stop: asyncio.Event, cleanup: AsyncExitStack) -> None:
    await lease.take()
    cleanup.push_async_callback(lease.give_back)
    keeper = asyncio.create_task(lease.keep(stop))
    cleanup.callback(keeper.cancel)
