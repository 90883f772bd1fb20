"""Results on their way to the sink: a Redis stream, read by one consumer group.

Promised: an item has at most one result in the stream, and it stays there until `commit` (or
`reject`) has said what became of it. Not promised: that a result is read only once; two sinks may
see the same one, and :meth:`ResultStream.commit` may be called for it twice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from common.ids import Epoch, Item, RunName
from common.queue.failures import encode_reason
from common.queue.scripts import Scripts, explain
from common.records import StreamEntry, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import redis.asyncio

    from common.queue.prompts import QueueLimits

GROUP = "sink"
COMMIT_ITEMS = 100  # most entries that one call of the script takes


class ResultStream:
    """The results of one run, in one of its epochs; raises as `Scripts` does."""

    def __init__(
        self, redis: redis.asyncio.Redis, run: RunName, epoch: Epoch, limits: QueueLimits
    ) -> None:
        self._redis: Any = redis  # its types allow for answers in text; ours are bytes
        self._limits = limits
        self._scripts = Scripts(redis, run, epoch)
        self._stream = self._scripts.keys.stream
        self.run = run
        self.epoch = epoch

    async def read(self, consumer: str, count: int, *, block_ms: int | None) -> list[StreamEntry]:
        """Return up to ``count`` results that nobody has read yet.

        Waits ``block_ms`` for the first one; None does not wait.
        """

        async def ask() -> Any:
            return await self._redis.xreadgroup(
                GROUP, consumer, {self._stream: ">"}, count=count, block=block_ms
            )

        return _entries(await self._grouped(ask))[0]

    async def pending(self, consumer: str) -> list[StreamEntry]:
        """Return what ``consumer`` has read and not committed: its own, after a restart."""
        found: list[StreamEntry] = []
        last = "0-0"
        while True:
            answer = await self._grouped(partial(self._own, consumer, last))
            entries, gone = _entries(answer)
            await self._forget(gone)
            found += entries
            ids = [entry.entry_id for entry in entries] + gone
            if not ids:
                return found
            last = max(ids, key=_order)

    async def claim(self, consumer: str, *, idle_seconds: float, count: int) -> list[StreamEntry]:
        """Take over up to ``count`` results that other sinks read ``idle_seconds`` ago or more."""

        async def ask() -> Any:
            return await self._redis.xautoclaim(
                self._stream, GROUP, consumer, int(idle_seconds * 1000), "0-0", count=count
            )

        answer = await self._grouped(ask)
        return _entries([(self._stream, answer[1])])[0]

    async def commit(self, entries: Sequence[StreamEntry]) -> int:
        """Say that items are on object storage; their results leave the stream.

        Items without a result in the stream are taken, too, from wherever they are. Returns how
        many items were not committed before.
        """
        new = 0
        for start in range(0, len(entries), COMMIT_ITEMS):
            args: list[str | int] = []
            for entry in entries[start : start + COMMIT_ITEMS]:
                args += (entry.item, entry.entry_id or "-")
            ttl = self._limits.result_ttl_seconds
            new += int(await self._scripts.call("commit", ttl, *args))
        return new

    async def reject(self, entry: StreamEntry, verdict: Verdict, text: str) -> None:
        """Dead-letter an item whose result cannot be stored; nothing where it is gone already."""
        ttl = self._limits.failure_ttl_seconds
        await self._scripts.call(
            "reject", entry.entry_id, ttl, verdict, encode_reason(text), entry.item
        )

    async def _own(self, consumer: str, start: str) -> Any:
        return await self._redis.xreadgroup(GROUP, consumer, {self._stream: start}, count=100)

    async def _forget(self, gone: list[str]) -> None:
        if not gone:
            return
        try:
            await self._redis.xack(self._stream, GROUP, *gone)
        except (RedisError, OSError) as error:
            raise explain(error, self.run, "reading results") from error

    async def _grouped(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask, making the group where it is missing; what another epoch answers is not taken."""
        try:
            try:
                answer = await ask()
            except ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                await self._check_epoch()
                await self._redis.xgroup_create(self._stream, GROUP, id="0", mkstream=True)
                answer = await ask()
            await self._check_epoch()
        except (RedisError, OSError) as error:
            raise explain(error, self.run, "reading results") from error
        return answer

    async def _check_epoch(self) -> None:
        found = await self._redis.hget(self._scripts.keys.meta, "epoch")
        if found != self.epoch.encode():
            raise ResponseError(f"GENQ_EPOCH {found.decode() if found else 'missing'}")


def _entries(answer: Any) -> tuple[list[StreamEntry], list[str]]:
    """Return the entries of a stream's answer, and the ids of those deleted meanwhile."""
    entries, gone = [], []
    for _, found in answer or []:
        for entry_id, fields in found:
            if fields:
                item = Item(int(fields[b"n"]))
                entries.append(StreamEntry(entry_id.decode(), item, fields[b"p"]))
            elif entry_id:
                gone.append(entry_id.decode())
    return entries, gone


def _order(entry_id: str) -> tuple[int, int]:
    ms, _, sequence = entry_id.partition("-")
    return int(ms), int(sequence)
