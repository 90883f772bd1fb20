"""Which results come next: one's own of a life before, those left behind by others, new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.queue.results import ResultStream
    from common.records import StreamEntry
    from consumer.sink.tools import Tools

log = structlog.get_logger()
READ_ENTRIES = 50  # at a time, at most
READ_BYTES = 16 << 20  # at a time, about, as JSON; as objects it is several times as much
_FIRST_ENTRIES = 8  # while it is not known how large they are


class Intake:
    """Reads one run's stream for one sink."""

    def __init__(self, tools: Tools, stream: ResultStream) -> None:
        self._tools = tools
        self._stream = stream
        self._inherited: list[StreamEntry] | None = None  # None: not asked for yet
        self._claim_at = 0.0
        self._entries = _FIRST_ENTRIES

    async def next(self, room: int) -> Sequence[StreamEntry]:
        """Return some results, at most ``room``; none if there are none now.

        May be called again where it failed: nothing is handed out twice by it, or left out.

        Raises:
            QueueError: Redis did not answer.
        """
        tools, count = self._tools, min(self._entries, room)
        if self._inherited is None:
            self._inherited = await self._stream.pending(tools.consumer)
            if self._inherited:
                log.info("sink.inherited", run=self._stream.run, entries=len(self._inherited))
        if self._inherited:
            mine, self._inherited = self._inherited[:count], self._inherited[count:]
            return mine
        if tools.clock() >= self._claim_at:
            left = await self._stream.claim(
                tools.consumer, idle_seconds=tools.claim_seconds, count=count
            )
            if left:
                return left
            self._claim_at = tools.clock() + tools.claim_seconds / 4
        return await self._stream.read(tools.consumer, count, block_ms=None)

    def read_again(self) -> None:
        """Hand out once more what was handed out and is not committed."""
        self._inherited = None

    def learn(self, sizes: Sequence[int]) -> None:
        """Let the next read take as many as fit, going by the sizes of these."""
        if sizes:
            fit = READ_BYTES // max(1, sum(sizes) // len(sizes))
            self._entries = max(1, min(READ_ENTRIES, fit, 2 * self._entries))
