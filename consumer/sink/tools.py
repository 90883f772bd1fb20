"""What all runs of one sink share, and how one of them calls Redis and storage."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from common.build import NewerObjectError
from common.errors import EpochError, QueueError, RunClosedError, StoreError, VerifyError
from consumer.sink.figures import Figures
from consumer.sink.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import redis.asyncio

    from common.objectstore import ObjectStore
    from common.queue.prompts import QueueLimits
    from common.queue.run_state import Runs
    from consumer.sink.batcher import Bounds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tools:
    """What all runs of one sink share."""

    redis: redis.asyncio.Redis
    runs: Runs
    limits: QueueLimits
    store: ObjectStore
    bounds: Bounds
    suffix: str
    folder: Path
    consumer: str
    claim_seconds: float  # results that another sink read so long ago are taken over
    stop: asyncio.Event
    clock: Callable[[], float]
    say: Callable[[str], None]
    redis_calls: asyncio.Semaphore  # fewer than the client has connections
    figures: Figures = field(default_factory=Figures)


class Calls:
    """One run's calls; each is repeated until its service answers it.

    Raises, from every call:
        StoppingError: the sink was told to stop meanwhile.
        EpochError: the run is not in Redis as it was.
        RunClosedError: it is over meanwhile; Redis itself is well.
    """

    def __init__(self, tools: Tools) -> None:
        self._slots = tools.redis_calls
        figures = tools.figures
        self._storage = Outage(
            "storage", tools.stop, retried=StoreError, final=(NewerObjectError,), figures=figures
        )
        self._queue = Outage(
            "redis",
            tools.stop,
            retried=QueueError,
            final=(EpochError, RunClosedError),
            figures=figures,
        )

    async def redis(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what an async call of Redis returns."""

        async def limited() -> T:
            async with self._slots:
                return await call()

        return await self._queue.outlast(limited)

    async def store(self, call: Callable[[], T]) -> T:
        """Return what a blocking call of the store returns; it runs in a thread.

        Raises:
            VerifyError: a newer genq wrote what was read: no waiting makes this one know it.
        """
        try:
            return await self._storage.outlast(lambda: asyncio.to_thread(call))
        except NewerObjectError as error:
            raise VerifyError(error.what, why=error.why, fix=error.fix) from error
