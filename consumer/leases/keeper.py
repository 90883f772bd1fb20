"""Keeps what was leased: renews all leases of a run in one call, and says which are lost.

A renewal that Redis did not take is tried again soon; a lease is only given up when Redis says
that the item is done or leased elsewhere. So an outage, a stopped process or a late event loop
cost nothing that can still be saved.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from common.errors import EpochError, QueueError, RunClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.ids import Item, RunName, Token, WorkerName
    from common.queue.prompts import PromptQueue
    from common.records import Leased, RunInfo

RETRY_SECONDS = 2.0
LAG_EVERY_SECONDS = 0.25
LAG_LIMIT_SECONDS = 1.0

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Held:
    """One lease of ours. ``on_lost`` is called once, when the lease turns out to be lost."""

    info: RunInfo
    leased: Leased
    queue: PromptQueue
    on_lost: Callable[[], None] | None = None
    lost: bool = False
    handed: bool = False  # its outcome is in the outbox
    answered: bool = False  # and that outcome is a result, which any token may deliver
    orphaned: bool = False  # the run left this Redis: renewed no more, the result still offered

    @property
    def run(self) -> RunName:
        """The run that the item is of."""
        return self.info.run

    def adopt(self, leased: Leased, queue: PromptQueue) -> bool:
        """Go on under a newer delivery of the same item to us; False if it must be worked on anew.

        After an outage our own expired items may come back by a lease call before they are renewed.
        What is being generated, or was and is not yet delivered, needs no second try.
        """
        if self.lost or self.queue is not queue or (self.handed and not self.answered):
            return False
        self.leased = leased
        return True


@dataclass(slots=True)
class Keeper:
    """Holds leases until they are let go. One task runs :meth:`run`."""

    worker: WorkerName
    renew_seconds: float
    _held: dict[RunName, dict[Item, Held]] = field(default_factory=dict)
    _failing: bool = False
    unanswered: set[RunName] = field(default_factory=set)  # lease calls may have been executed
    lost_count: int = 0
    longest_lag_seconds: float = 0.0

    def hold(self, held: Held) -> None:
        """Renew this lease from now on."""
        self._held.setdefault(held.run, {})[held.leased.item] = held

    def let_go(self, held: Held) -> None:
        """Renew this lease no more."""
        leases = self._held.get(held.run, {})
        if leases.get(held.leased.item) is held:
            del leases[held.leased.item]

    def find(self, run: RunName, item: Item) -> Held | None:
        """Return our lease on an item, if we hold one."""
        return self._held.get(run, {}).get(item)

    def all(self) -> list[Held]:
        """Return every lease that is held."""
        return [held for leases in self._held.values() for held in leases.values()]

    def __len__(self) -> int:
        return sum(len(leases) for leases in self._held.values())

    async def run(self) -> None:
        """Renew, for ever. Never raises for a fault of Redis."""
        while True:
            await asyncio.sleep(RETRY_SECONDS if self._failing else self.renew_seconds)
            await self.renew()

    async def renew(self) -> None:
        """Renew all leases once, one call a queue."""
        failing = False
        for queue, held in self._by_queue():
            tokens = [h.leased.token for h in held]
            try:
                items = [h.leased.item for h in held]
                lost = await queue.extend(self.worker, list(zip(items, tokens, strict=True)))
            except EpochError as error:
                for lease in held:
                    lease.orphaned = True
                log.warning(
                    "run is not in Redis any more; results are kept", run=held[0].run, fix=error.fix
                )
            except RunClosedError:
                self._lose(held)
            except QueueError as error:
                failing = True
                if not self._failing:
                    log.warning("leases not renewed, trying again", why=str(error))
            else:
                # A lease call on its way may have brought an item back to us, under a new token.
                if held[0].run not in self.unanswered:
                    self._lose(_still_lost(held, tokens, set(lost)))
        if self._failing and not failing:
            log.info("leases are renewed again")
        self._failing = failing

    async def watch_loop(self) -> None:
        """Say when the event loop was late: whatever blocks it also delays renewals."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_EVERY_SECONDS)
            lag = time.monotonic() - before - LAG_EVERY_SECONDS
            self.longest_lag_seconds = max(self.longest_lag_seconds, lag)
            if lag > LAG_LIMIT_SECONDS:
                log.warning("event loop was late", lag_seconds=round(lag, 2))
                if lag > self.renew_seconds:
                    await self.renew()

    def _by_queue(self) -> list[tuple[PromptQueue, list[Held]]]:
        groups: dict[int, tuple[PromptQueue, list[Held]]] = {}
        for leases in self._held.values():
            for held in leases.values():
                if not held.orphaned:
                    groups.setdefault(id(held.queue), (held.queue, []))[1].append(held)
        return list(groups.values())

    def _lose(self, held: list[Held]) -> None:
        news = [lease for lease in held if not lease.lost]  # two renewals may find out at once
        for lease in news:
            self.let_go(lease)
            lease.lost = True
            self.lost_count += 1
            if lease.on_lost:
                lease.on_lost()
        if news:
            log.info("leases lost", run=news[0].run, items=len(news))


def _still_lost(held: list[Held], tokens: list[Token], gone: set[Item]) -> list[Held]:
    """Leave out what changed while the call ran: handed over, or under a newer delivery to us."""
    return [
        h
        for h, token in zip(held, tokens, strict=True)
        if h.leased.item in gone and not h.handed and h.leased.token == token
    ]
