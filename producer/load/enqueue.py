"""The ids of a run on their way into Redis: all of them once, or just those that are missing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from common.audit import check_counts
from common.failpoint import declare, hit
from common.ids import Item, new_epoch
from common.queue.prompts import CHUNK_ITEMS, PromptQueue
from common.queue.run_state import Runs
from producer.load.room import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import redis.asyncio

    from common.ids import Epoch
    from common.queue.failures import FailureInfo
    from common.queue.prompts import QueueLimits
    from common.records import RunInfo, RunManifest

T = TypeVar("T")
declare(
    "load.after_create",
    "load.after_restore",
    "load.after_chunk",
    "load.after_chunks",
    "load.after_open",
    "requeue.after_buried",
    "mend.after_renew",
)
BURIED_ITEMS = 200  # dead letters a call
_CONCURRENT_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of a run's ids."""

    state: str
    new: int  # ids that went on the queue
    restored: int = 0  # items that were known to be committed, from object storage


class Enqueuer:
    """Makes a run known to Redis. Every step may be repeated, by two loads at once, too."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        limits: QueueLimits,
        manifest: RunManifest,
        *,
        warn: Callable[[str], None],
        store: str = "",
        accepted: Collection[str] = (),
        verdicts: Mapping[str, int] | None = None,
    ) -> None:
        self._client = client
        self._room = Room(client, items=manifest.items, warn=warn)
        self._limits = limits
        self._manifest = manifest
        self._store = store
        self._accepted = accepted  # what the run is not held for any more
        self._verdicts = verdicts or {}  # how many completions of each storage holds
        self._runs = Runs(client, limits)

    async def enqueue(
        self,
        *,
        priority: int,
        committed: bytes,
        progress: Callable[[int], None],
        dead: Callable[[], Iterable[FailureInfo]] = tuple,
    ) -> Enqueued:
        """Bring the run to the state ``open`` with every item open, committed or dead.

        Waits while Redis is full, and says so. ``committed`` is the bitmap of what object storage
        holds, ``dead`` gives the dead letters that are to be dead again; both are used while the
        run is being loaded, before any id goes on the queue.

        Raises:
            QueueError: Redis refuses or is lost; the same call goes on from there.
        """
        info = await self._room.outlast(
            lambda: self._runs.create(
                self._manifest, priority=priority, store=self._store, accepted=self._accepted
            ),
            queued=0,
        )
        hit("load.after_create")
        if info.state == "cancelled":  # to load it again is to want it again
            await self._runs.reopen(info.run)
            info = replace(info, state="loading")
        new = restored = 0
        # A run that was paused or held in the middle of its load is to be loaded on all the same.
        if await incomplete(self._runs, info):
            restored = await self._restore(info, committed)
            await self._bury_again(info.epoch, dead())
            new = await self._all_chunks(info.epoch, progress)
            hit("load.after_chunks")
            await self._runs.open(info.run)
            hit("load.after_open")
        await self._recount(info.epoch)
        if info.state != "closed":
            new += await self._repair(info)
        return Enqueued(state=info.state, new=new, restored=restored)

    async def put_back(self, info: RunInfo, lost: Sequence[Item], *, anew: bool) -> Enqueued:
        """Queue the committed items again that object storage has ``lost``; open a closed run.

        ``anew``: its end was taken away, so that a sink has to write it again.

        Raises:
            QueueError: Redis refuses or is lost; the same call goes on from there.
        """
        epoch = info.epoch
        if anew or lost:
            # A sink that serves the run may still know what the lost parts held, and would take
            # the items for committed at once. In another epoch it reads the parts that there are.
            renew = partial(self._queue(epoch).renew, new_epoch())
            epoch = await self._room.outlast(renew, queued=0)
            hit("mend.after_renew")
        new = await self._room.outlast(lambda: self._runs.uncommit(info.run, epoch, lost), queued=0)
        await self._recount(epoch)
        opened = new > 0 and info.state == "closed"
        return Enqueued(state="open" if opened else info.state, new=new)

    async def _restore(self, info: RunInfo, committed: bytes) -> int:
        count = int.from_bytes(committed, "big").bit_count()
        if count:
            await self._room.outlast(
                lambda: self._runs.restore(info.run, info.epoch, committed=committed), queued=0
            )
            await self._recount(info.epoch)
            hit("load.after_restore")
        return count

    async def _recount(self, epoch: Epoch) -> None:
        """Tell Redis the verdicts of what it has not seen taken; after each repair, and again."""
        await self._room.outlast(partial(self._queue(epoch).recount, self._verdicts), queued=0)

    async def _bury_again(self, epoch: Epoch, dead: Iterable[FailureInfo]) -> None:
        queue = self._queue(epoch)
        for some in _batches(dead, BURIED_ITEMS):
            await self._room.outlast(partial(queue.bury_again, some), queued=0)
            hit("requeue.after_buried")

    async def _all_chunks(self, epoch: Epoch, progress: Callable[[int], None]) -> int:
        queue = self._queue(epoch)
        chunks = iter(range(-(-self._manifest.items // CHUNK_ITEMS)))
        new = done = 0

        async def work() -> None:
            nonlocal new, done
            for chunk in chunks:
                count = await self._room.outlast(
                    partial(queue.enqueue, chunk), queued=done * CHUNK_ITEMS
                )
                hit("load.after_chunk")
                new += count  # not across the await: others add meanwhile
                done += 1
                progress(min(done * CHUNK_ITEMS, self._manifest.items))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_CONCURRENT_CHUNKS):
                    group.create_task(work())
        except ExceptionGroup as failed:  # one outage ends all of them: the first word is the word
            raise failed.exceptions[0] from failed
        return new

    async def _repair(self, info: RunInfo) -> int:
        """Put back ids that vanished (`rq empty`, a killed cancel); return how many."""
        counts = await self._runs.sample(info.run)
        if counts.loaded == counts.total and not check_counts(counts):
            return 0
        known = await self._runs.open_items(info.run)
        queue = self._queue(info.epoch)
        new = 0
        for items in _batches(_absent(known, self._manifest.items), CHUNK_ITEMS):
            new += await self._room.outlast(
                partial(queue.enqueue_missing, items), queued=self._manifest.items
            )
        await self._runs.open(info.run)  # if it was not whole before
        return new

    def _queue(self, epoch: Epoch) -> PromptQueue:
        return PromptQueue(self._client, self._manifest.run, epoch, self._limits)


async def incomplete(runs: Runs, info: RunInfo) -> bool:
    """Tell whether some of a run's ids were never put on the queue."""
    if info.state in ("loading", "cancelled"):
        return True
    counts = await runs.sample(info.run)
    return info.state != "closed" and counts.loaded < counts.total


def _absent(bitmap: bytes, items: int) -> Iterator[Item]:
    """Yield the items whose bit is not set."""
    for byte in range(-(-items // 8)):
        value = bitmap[byte] if byte < len(bitmap) else 0
        if value != 0xFF:
            for bit in range(8):
                if not value & (0x80 >> bit) and byte * 8 + bit < items:
                    yield Item(byte * 8 + bit)


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
