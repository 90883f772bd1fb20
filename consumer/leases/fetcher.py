"""Leases items just ahead of need and brings their rows.

Only free slots are filled: an item that waits in a consumer ages there while others are idle.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from common.errors import EpochError, QueueError, RunClosedError, StoreError
from common.ids import new_nonce, row_of
from common.records import Failure, Verdict
from consumer.leases.keeper import Held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.ids import RunName, WorkerName
    from common.records import Leased, Row, RunManifest
    from consumer.leases.catalogue import ActiveRun, Catalogue
    from consumer.leases.keeper import Keeper
    from consumer.leases.outbox import Outbox
    from consumer.leases.shards import Shards

MOST_AT_ONCE = 256  # ids in one lease call
UNREADABLE_SECONDS = 10.0  # a run whose prompts cannot be read is left alone for so long
SUSPECT_DEATHS = 3  # engine deaths from which on an item is run alone

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Work:
    """One leased item with all that is needed to answer it."""

    run: ActiveRun
    held: Held
    row: Row
    sample: int

    @property
    def leased(self) -> Leased:
        """The delivery that this work is about."""
        return self.held.leased

    @property
    def suspect(self) -> bool:
        """Whether the item has been in so many engine deaths that it must run alone."""
        return self.leased.deaths >= SUSPECT_DEATHS


class Fetcher:
    """Takes leases from the served runs, best first."""

    def __init__(
        self,
        worker: WorkerName,
        catalogue: Catalogue,
        shards: Shards,
        keeper: Keeper,
        outbox: Outbox,
    ) -> None:
        self._worker = worker
        self._catalogue = catalogue
        self._shards = shards
        self._keeper = keeper
        self._outbox = outbox
        self._unanswered: dict[tuple[RunName, str], tuple[str, int]] = {}
        self._unreadable_until: dict[RunName, float] = {}

    async def fetch(self, n: int) -> list[Work]:
        """Return up to ``n`` items to work on; fewer, or none, when there are no more.

        Raises:
            QueueError: Redis did not answer, and there is nothing to work on meanwhile. The same
                lease call is repeated the next time, so what it took is not lost.
        """
        works: list[Work] = []
        for run in list(self._catalogue.active):
            if len(works) >= n:
                break
            if self._unreadable_until.get(run.info.run, 0.0) > time.monotonic():
                continue
            try:
                leased = await self._lease(run, n - len(works))
            except QueueError:
                if not works:
                    raise
                break  # what other runs gave is kept by us: nobody else would ever begin it
            works += await self._rows(run, leased)
        return [work for work in works if not work.held.lost]  # others took a while to be asked

    async def _lease(self, run: ActiveRun, n: int) -> list[Leased]:
        key = (run.info.run, run.info.epoch)
        request, count = self._unanswered.get(key, (new_nonce(), min(n, MOST_AT_ONCE)))
        self._keeper.unanswered.add(run.info.run)
        try:
            leased = await run.queue.lease(self._worker, count, request=request)
        except (EpochError, RunClosedError) as error:
            self._answered(key)
            self._catalogue.active = [a for a in self._catalogue.active if a is not run]
            log.info("run takes no more leases", run=run.info.run, why=error.what)
            return []
        except QueueError:
            self._unanswered[key] = (request, count)
            raise
        self._answered(key)
        return self._news(run, leased)

    def _answered(self, key: tuple[RunName, str]) -> None:
        self._unanswered.pop(key, None)
        self._keeper.unanswered.discard(key[0])

    async def _rows(self, run: ActiveRun, leased: list[Leased]) -> list[Work]:
        held = [Held(run.info, lease, run.queue) for lease in leased]
        for lease in held:
            self._keeper.hold(lease)
        # Side by side: scattered items need a shard each, and the engine must not run dry.
        works = await asyncio.gather(*(self._read(run, lease) for lease in held))
        return [work for work in works if work is not None]

    async def _read(self, run: ActiveRun, held: Held) -> Work | None:
        """Return the item with its row; None where it cannot be read, and its lease is given up."""
        try:
            return await self._work(run, held)
        except StoreError as error:
            self._unreadable(run.info.run, error)
            self._outbox.release(held)
        except (ValueError, IndexError) as error:
            self._outbox.fail(held, _bad_row(held, error))
        return None

    def _news(self, run: ActiveRun, leased: Sequence[Leased]) -> list[Leased]:
        """Leave out the deliveries of items that we are answering already."""
        news: list[Leased] = []
        for lease in leased:
            mine = self._keeper.find(run.info.run, lease.item)
            if mine is None or not mine.adopt(lease, run.queue):
                news.append(lease)
        if len(news) < len(leased):
            log.info("own items leased again", run=run.info.run, items=len(leased) - len(news))
        return news

    async def _work(self, run: ActiveRun, held: Held) -> Work:
        manifest: RunManifest = run.manifest
        number, sample = row_of(held.leased.item, manifest.settings.samples)
        return Work(run, held, await self._shards.row(manifest, number), sample)

    def _unreadable(self, run: RunName, error: StoreError) -> None:
        now = time.monotonic()
        if self._unreadable_until.get(run, 0.0) <= now:
            log.warning(
                "prompts cannot be read; leases released", run=run, what=error.what, why=error.why
            )
        self._unreadable_until[run] = now + UNREADABLE_SECONDS


def _bad_row(held: Held, error: Exception) -> Failure:
    leased = held.leased
    text = f"the row cannot be read from its shard: {error}"
    return Failure(leased.item, leased.token, Verdict.BAD_ROW, text, charged=True, final=True)
