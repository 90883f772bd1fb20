"""Waiting for room: a Redis at its maxmemory stops a load, it does not end it.

Consumers and sinks go on meanwhile, and each completion that is stored makes room.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from common.errors import QueueFullError
from common.redis_client import memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import redis.asyncio

T = TypeVar("T")
ITEM_BYTES = 190  # what a queued id takes in Redis, all told
RETRY_SECONDS = 1.0


class Room:
    """Calls that need memory of Redis, repeated while it has none.

    Says so once however many calls wait: how full it is, how much is missing, and what helps.
    """

    def __init__(
        self, client: redis.asyncio.Redis, *, items: int, warn: Callable[[str], None]
    ) -> None:
        self._client = client
        self._items = items
        self._warn = warn
        self._waiting = 0

    async def outlast(self, call: Callable[[], Awaitable[T]], *, queued: int) -> T:
        """Return what ``call`` returns, as soon as there is room for it; ``queued``: ids so far.

        Raises:
            QueueError: Redis refuses for another reason, or is lost.
        """
        waits = False
        try:
            while True:
                try:
                    return await call()
                except QueueFullError:
                    if not waits:
                        waits = True
                        await self._begin(queued)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            if waits:
                self._end()

    async def _begin(self, queued: int) -> None:
        self._waiting += 1
        if self._waiting > 1:
            return
        used, limit = await memory(self._client)
        left = max(0, self._items - queued)
        enough = used + left * ITEM_BYTES
        self._warn(
            f"Redis is full: {_mib(used)} of {_mib(limit)} MiB; {queued:,} of {self._items:,} ids"
            f" are queued.\n"
            f"  The other {left:,} need some {_mib(left * ITEM_BYTES)} MiB more. Waiting: what is"
            f" finished makes room; Ctrl-C is safe, the same command goes on.\n"
            f"  redis-cli CONFIG SET maxmemory {_mib(enough * 5 // 4)}mb"
        )

    def _end(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._warn("Redis has room again; going on.")


def _mib(size: int) -> str:
    return f"{-(-size // 2**20):,}".replace(",", "")
