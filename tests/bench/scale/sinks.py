"""A sink as Redis sees it: reads the stream, "stores" parts for a while, and commits them."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from common.ids import Epoch, RunName
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.results import ResultStream
from consumer.sink.intake import READ_ENTRIES
from consumer.sink.run import POLL_SECONDS
from consumer.sink.service import REAP_SECONDS


class Sink:
    """The real calls of a sink, with a wait in the place of the PUT; results are read in full."""

    def __init__(self, plan, client, counted) -> None:
        limits = QueueLimits()
        run, epoch = RunName(plan.run), Epoch(plan.epoch)
        self._plan, self._counted = plan, counted
        self._name = f"sink-{plan.first}"
        self._stream = ResultStream(client, run, epoch, limits)
        self._queue = PromptQueue(client, run, epoch, limits)

    async def serve(self, until: float) -> None:
        await asyncio.gather(self._collect(until), self._reap(until))

    async def _collect(self, until: float) -> None:
        batch = []
        while time.monotonic() < until:
            room = min(READ_ENTRIES, self._plan.part_rows - len(batch))
            read = partial(self._stream.read, self._name, room, block_ms=None)
            batch += (entries := await self._counted.timed("read", read))
            if len(batch) >= self._plan.part_rows:
                await self._store(batch)
                batch = []
            elif not entries:
                await asyncio.sleep(POLL_SECONDS)  # poll: the stream, as a sink does
        if batch:
            await self._store(batch)

    async def _store(self, batch) -> None:
        await asyncio.sleep(self._plan.put_seconds)  # lasts: a PUT
        new = 0
        for start in range(0, len(batch), 100):  # a call of the script each, as commit() makes them
            call = partial(self._stream.commit, batch[start : start + 100])
            new += await self._counted.timed("commit", call)
        self._counted.committed += new * self._counted.on

    async def _reap(self, until: float) -> None:
        while time.monotonic() < until:
            while (await self._counted.timed("reap", self._queue.reap)).more:
                pass
            await asyncio.sleep(REAP_SECONDS)  # lasts: the rhythm of a sink
