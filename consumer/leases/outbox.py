"""What became of leased items, handed to the queue by one task in batches.

A finished result is kept until the queue has taken it: through an outage of Redis, and through a
loss of all that Redis held, until the run was loaded back under a new epoch. A failure or a
release that meets a new epoch is dropped: the item is enqueued anew by the load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from common import failpoint
from common.errors import EpochError, QueueError, RunClosedError
from common.ids import new_nonce
from common.queue.prompts import FailOutcome, Outcome
from common.records import Failure, Finished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from common.ids import WorkerName
    from common.queue.prompts import PromptQueue
    from common.records import RunInfo
    from consumer.leases.keeper import Held, Keeper

BATCH = 16  # big batches stall the server
GATHER_SECONDS = 0.01
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
PARKED_WAIT_SECONDS = 1.0  # how often to look for the run's new epoch
FULL_BYTES = 256 << 20  # kept results; above it nothing is leased
FULL_ITEMS = 4096

failpoint.declare("outbox.before_complete", "outbox.after_complete")
log = structlog.get_logger()

News = Finished | Failure | None  # None: a release


@dataclass(slots=True)
class Tally:
    """What the queue took so far."""

    succeeded: int = 0
    failed: int = 0  # tries that were charged
    released: int = 0
    duplicates: int = 0
    dropped: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Batch:
    """Items of one run and one kind that go in one call, repeated unchanged until answered."""

    info: RunInfo
    held: list[Held]
    news: list[News]
    request: str = field(default_factory=new_nonce)
    refused_by: PromptQueue | None = None  # knows the run under another epoch, or not at all


def _kind(news: News) -> type:
    return type(news)


class Outbox:
    """Takes news of items at once and delivers it when it can. One task runs :meth:`run`."""

    def __init__(
        self,
        worker: WorkerName,
        keeper: Keeper,
        present_queue: Callable[[RunInfo], PromptQueue | None],
        on_delivered: Callable[[int], None] = lambda _n: None,
    ) -> None:
        self._worker = worker
        self._keeper = keeper
        self._present_queue = present_queue
        self._on_delivered = on_delivered
        self._fresh: list[tuple[Held, News]] = []
        self._batches: deque[_Batch] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._bytes = 0
        self._failing = False
        self.tally = Tally()

    def finish(self, held: Held, finished: Finished) -> None:
        """Hand over a result."""
        self._bytes += len(finished.payload)
        held.answered = True
        self._add(held, finished)

    def fail(self, held: Held, failure: Failure) -> None:
        """Say that a try failed."""
        self._add(held, failure)

    def release(self, held: Held) -> None:
        """Give an item back, uncharged."""
        self._add(held, None)

    @property
    def full(self) -> bool:
        """Whether so much waits here that nothing more should be leased."""
        return self._bytes > FULL_BYTES or len(self) > FULL_ITEMS

    def __len__(self) -> int:
        return len(self._fresh) + sum(len(batch.held) for batch in self._batches)

    async def drained(self) -> None:
        """Wait until everything was taken by the queue."""
        await self._idle.wait()

    async def run(self) -> None:
        """Deliver, for ever. Never raises for a fault of Redis."""
        wait = FIRST_WAIT_SECONDS
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._form_batches()
            if await self._deliver_all():
                wait = FIRST_WAIT_SECONDS
                if self._batches:  # parked: the run is away
                    await asyncio.sleep(PARKED_WAIT_SECONDS)
            else:
                await asyncio.sleep(wait)
                wait = min(LONGEST_WAIT_SECONDS, wait * 2)
            if not self._fresh and not self._batches:
                self._wake.clear()
                self._idle.set()

    def _add(self, held: Held, news: News) -> None:
        held.handed = True
        self._fresh.append((held, news))
        self._idle.clear()
        self._wake.set()

    def _form_batches(self) -> None:
        fresh, self._fresh = self._fresh, []
        groups: dict[tuple[int, type], _Batch] = {}
        for held, news in fresh:
            key = (id(held.queue), _kind(news))
            batch = groups.get(key)
            if batch is None or len(batch.held) >= BATCH:
                batch = groups[key] = _Batch(held.info, [], [])
                self._batches.append(batch)
            batch.held.append(held)
            batch.news.append(news)

    async def _deliver_all(self) -> bool:
        """Try each batch once, oldest first; return whether Redis answered."""
        for _ in range(len(self._batches)):
            batch = self._batches.popleft()
            try:
                taken = await self._deliver(batch)
            except QueueError as error:
                self._batches.appendleft(batch)
                if not self._failing:
                    log.warning("results kept, Redis does not take them", why=str(error))
                self._failing = True
                return False
            except BaseException:
                self._batches.appendleft(batch)
                raise
            if self._failing:
                log.info("Redis takes results again", waiting=len(self))
                self._failing = False
            if taken:
                self._forget(batch)
            else:
                self._batches.append(batch)
        return True

    async def _deliver(self, batch: _Batch) -> bool:
        """Return whether the batch needs to be kept no longer."""
        queue = self._present_queue(batch.info) or batch.held[0].queue
        if queue is batch.refused_by:
            return False
        try:
            await self._send(queue, batch)
        except EpochError:
            if isinstance(batch.news[0], Finished):
                batch.refused_by = queue
                log.warning(
                    "run is not in Redis; its results are kept until it is loaded again",
                    run=batch.info.run,
                    items=len(batch.held),
                )
                return False
            self.tally.dropped += len(batch.held)
        except RunClosedError as error:
            self.tally.dropped += len(batch.held)
            log.info(
                "run is closed; dropped", run=batch.info.run, items=len(batch.held), why=error.what
            )
        return True

    async def _send(self, queue: PromptQueue, batch: _Batch) -> None:
        first = batch.news[0]
        if isinstance(first, Finished):
            finished = [news for news in batch.news if isinstance(news, Finished)]
            failpoint.hit("outbox.before_complete")
            outcomes = await queue.complete(self._worker, finished, request=batch.request)
            failpoint.hit("outbox.after_complete")
            self._count(finished, outcomes)
        elif isinstance(first, Failure):
            failures = [news for news in batch.news if isinstance(news, Failure)]
            charged = {FailOutcome.RETRY, FailOutcome.DEAD}
            results = await queue.fail(self._worker, failures)
            self.tally.failed += sum(1 for outcome in results if outcome in charged)
        else:
            pairs = [(held.leased.item, held.leased.token) for held in batch.held]
            self.tally.released += await queue.release(self._worker, pairs)

    def _count(self, finished: Iterable[Finished], outcomes: Iterable[Outcome]) -> None:
        for result, outcome in zip(finished, outcomes, strict=True):
            if outcome is Outcome.FIRST:
                self.tally.succeeded += 1
                self.tally.prompt_tokens += result.prompt_tokens
                self.tally.completion_tokens += result.completion_tokens
                self.tally.cached_tokens += result.cached_tokens
            else:
                self.tally.duplicates += 1

    def _forget(self, batch: _Batch) -> None:
        for held, news in zip(batch.held, batch.news, strict=True):
            self._keeper.let_go(held)
            if isinstance(news, Finished):
                self._bytes -= len(news.payload)
        self._on_delivered(len(batch.held))
