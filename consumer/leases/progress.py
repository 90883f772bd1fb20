"""The finished turns of conversations under way, kept in Redis for whoever goes on with them.

Kept in the background: no engine waits for Redis, so a consumer that is killed may lose the turn
that it had finished last. Nothing here ever fails an item: what cannot be kept or read back is
generated again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from common.build import build
from common.codec import ZSTD_LEVEL_FAST, compress, decompress, dumps, loads
from common.errors import QueueError
from common.queue.prompts import TURNS_BYTES
from common.records import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.ids import WorkerName
    from consumer.leases.keeper import Held

LOAD_SECONDS = 5.0
CLOSE_SECONDS = 2.0
_UNPACKED_BYTES = 64 << 20  # more than any of ours unfolds to

log = structlog.get_logger()


@dataclass(slots=True)
class Progress:
    """Keeps and reads back turns under our leases."""

    worker: WorkerName
    _latest: dict[Held, list[Turn]] = field(default_factory=dict)
    _tasks: dict[Held, asyncio.Task[None]] = field(default_factory=dict)
    _failing: bool = False

    async def load(self, held: Held) -> list[Turn]:
        """Return the turns that an earlier holder of the item finished; none if none are kept."""
        leased = held.leased
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                packed = await held.queue.saved_turns(self.worker, leased.item, leased.token)
            if not packed:
                return []
            raw = loads(decompress(packed, limit_bytes=_UNPACKED_BYTES))
            turns = [build(Turn, one) for one in raw]
        except (QueueError, TimeoutError) as error:
            self._trouble(error)
            return []
        except (ValueError, TypeError) as error:  # of another release
            log.warning("kept turns cannot be read", run=held.run, item=leased.item, why=str(error))
            return []
        log.info("conversation goes on", run=held.run, item=leased.item, turns=len(turns))
        return turns

    def save(self, held: Held, turns: Sequence[Turn]) -> None:
        """Keep all turns so far, soon; the newest take the place of those that wait."""
        self._latest[held] = list(turns)
        if held not in self._tasks:
            task = self._tasks[held] = asyncio.create_task(self._save(held))
            task.add_done_callback(lambda _: self._tasks.pop(held, None))

    async def close(self) -> None:
        """Wait shortly for what is being kept."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=CLOSE_SECONDS)

    async def _save(self, held: Held) -> None:
        while (turns := self._latest.pop(held, None)) is not None:
            if held.lost or held.handed:
                return
            packed = compress(dumps(turns), level=ZSTD_LEVEL_FAST)
            if len(packed) > TURNS_BYTES:
                return  # what was kept before stays: the conversation goes on from there
            leased = held.leased
            try:
                await held.queue.save_turns(self.worker, leased.item, leased.token, packed)
                self._failing = False
            except QueueError as error:
                self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        if not self._failing:
            log.warning("turns of conversations are not kept", why=str(error))
        self._failing = True
