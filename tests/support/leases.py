"""The consumer's lease side, as the daemon puts it together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from common.ids import RunName, WorkerName
from common.queue.prompts import QueueLimits
from common.queue.run_state import Runs
from consumer.engine.api import EngineFacts
from consumer.leases.catalogue import Catalogue
from consumer.leases.fetcher import Fetcher, Work
from consumer.leases.keeper import Keeper
from consumer.leases.outbox import Outbox
from consumer.leases.shards import Shards

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import redis.asyncio

    from common.objectstore import ObjectStore

FACTS = EngineFacts("sglang", "0", "tiny", "", 300, 200, 8, None)
WORKER = WorkerName("w1")


class Leases:
    """Fetches for one engine; nothing is delivered but in :func:`delivering`."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        store: ObjectStore,
        *,
        only: Sequence[RunName] = (),
        limits: QueueLimits | None = None,
    ) -> None:
        limits = limits or QueueLimits()
        self.runs = Runs(client, limits)
        self.catalogue = Catalogue(client, self.runs, store, limits, only=only)
        self.keeper = Keeper(WORKER, 15.0)
        self.outbox = Outbox(WORKER, self.keeper, self.catalogue.present_queue)
        self.fetcher = Fetcher(WORKER, self.catalogue, Shards(store), self.keeper, self.outbox)

    async def fetch(self, n: int) -> list[Work]:
        await self.catalogue.refresh(FACTS)
        return await self.fetcher.fetch(n)


@contextlib.asynccontextmanager
async def delivering(outbox: Outbox) -> AsyncIterator[None]:
    """What is finished goes to the queue inside."""
    task = asyncio.create_task(outbox.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
