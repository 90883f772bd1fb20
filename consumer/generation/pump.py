"""Keeps the engine full: as many items in flight as the window says, no lease earlier than needed.

Items that were in several engine deaths run alone, so that one that kills engines takes no
neighbour with it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from common.errors import QueueError
from common.records import Failure, Verdict
from consumer.generation.health import EngineTrust
from consumer.generation.window import Window
from consumer.leases.fetcher import MOST_AT_ONCE
from consumer.stopping import end_tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.ids import Item, RunName
    from consumer.generation.runner import Ended, Ready, Runner
    from consumer.leases.fetcher import Fetcher, Work
    from consumer.leases.keeper import Held, Keeper
    from consumer.leases.outbox import Outbox

GATHER_SECONDS = 0.02  # slots that become free together are filled by one call
IDLE_SECONDS = 0.5  # between looks at queues that had nothing
OUTAGE_SECONDS = 1.0  # between tries while Redis does not answer

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PumpSignals:
    """Called as things happen; tests wait for them."""

    leased: Callable[[int], None] = lambda _n: None
    generated: Callable[[Verdict], None] = lambda _verdict: None
    condemned: Callable[[str], None] = lambda _reason: None


@dataclass(slots=True)
class Pump:
    """Takes work while there is an engine (:attr:`ready`) and reason to. One task runs :meth:`run`.

    ``closed`` says why nothing may be leased for now; empty when it may. ``leaving``: how many
    requests that were given up still take places in the engine. ``on_trial``: it is the engine's
    settings that are tried; if it dies, no item is to blame.
    """

    fetcher: Fetcher
    keeper: Keeper
    outbox: Outbox
    runner: Runner
    signals: PumpSignals = field(default_factory=PumpSignals)
    closed: Callable[[], str] = lambda: ""
    leaving: Callable[[], int] = lambda: 0
    on_trial: bool = False
    answered: int = 0  # items that engines have answered so far, whatever the answers are worth
    window: Window = field(default_factory=lambda: Window(1))
    trust: EngineTrust = field(default_factory=EngineTrust)
    starved: bool = False  # the last look at the queues found nothing
    _ready: Ready | None = None
    _tasks: dict[Held, asyncio.Task[None]] = field(default_factory=dict)
    _suspects: deque[Work] = field(default_factory=deque)
    _alone: bool = False  # a suspect is running
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _failing: bool = False
    _closing: bool = False

    @property
    def in_flight(self) -> int:
        """How many items are being generated."""
        return len(self._tasks)

    @property
    def idle(self) -> bool:
        """Whether nothing runs, nothing waits to run, and the queues had nothing."""
        return self.starved and not self._tasks and not self._suspects

    @property
    def suspect_alone(self) -> bool:
        """Whether what runs now is an item that was in several engine deaths, alone."""
        return self._alone

    @property
    def ready(self) -> Ready | None:
        """The engine that is up, or None."""
        return self._ready

    def engine_up(self, ready: Ready) -> None:
        """Generate with this engine from now on, beginning with a small window."""
        self.window = Window(ready.facts.max_running, most=ready.facts.window)
        self.trust.fresh()
        self._ready = ready
        self._wake.set()

    def engine_down(self) -> None:
        """Start nothing more until an engine is up; what waits to run alone goes to others."""
        self._ready = None
        self._drop_suspects()

    def nudge(self) -> None:
        """Look again: the window or the runs changed."""
        self._wake.set()

    async def run(self) -> None:
        """Fetch and start work until :meth:`close`."""
        while not self._closing:
            room = min(self._room(), MOST_AT_ONCE)
            if room <= 0:
                await self._pause(IDLE_SECONDS)
                continue
            try:
                works = await self.fetcher.fetch(room)
            except QueueError as error:
                if not self._failing:
                    log.warning("cannot lease, trying again", why=str(error))
                self._failing = True
                await asyncio.sleep(OUTAGE_SECONDS)
                continue
            self._failing = False
            self.starved = not works
            for work in works:
                self._take(work)
            if works:
                self.signals.leased(len(works))
            # A queue that gave less than was asked for has no more at the moment.
            await self._pause(GATHER_SECONDS if len(works) == room else IDLE_SECONDS)

    def close(self) -> None:
        """Lease nothing more; :meth:`run` ends once a lease call under way was answered."""
        self._closing = True
        self._wake.set()

    def stop_item(self, run: RunName, item: Item) -> bool:
        """Give up one item and release it; False if it is not being generated here."""
        held = self.keeper.find(run, item)
        waiting = next((work for work in self._suspects if work.held is held), None)
        if waiting is not None:
            self._drop_suspect(waiting)
            self.outbox.release(waiting.held)
            return True
        task = self._tasks.get(held) if held else None
        return task is not None and task.cancel()

    async def drain(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Let what runs finish within the grace, or until ``hurry``; give the rest back.

        :meth:`run` must have ended before.
        """
        self._drop_suspects()
        waiter = asyncio.create_task(hurry.wait())
        until = time.monotonic() + grace_seconds
        while self._tasks and not hurry.is_set() and (left := until - time.monotonic()) > 0:
            await asyncio.wait(
                {*self._tasks.values(), waiter}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
        waiter.cancel()
        await end_tasks(list(self._tasks.values()))
        for held in self.keeper.all():  # leased, but never started
            if not held.handed:
                self.outbox.release(held)

    def _room(self) -> int:
        if self.closed():
            self._drop_suspects()  # who knows how long; a burst would wait for them
            return 0
        if self._ready is None or self.outbox.full:
            return 0
        if self.trust.pause_seconds(time.monotonic()) > 0 or self._alone:
            return 0
        if self._suspects:
            if not self._tasks:
                self._alone = True
                self._start(self._suspects.popleft(), self._ready)
            return 0
        return self.window.size - len(self._tasks) - self.leaving()

    async def _pause(self, seconds: float) -> None:
        pause = self.trust.pause_seconds(time.monotonic())
        self._wake.clear()
        try:
            await asyncio.wait_for(self._wake.wait(), min(seconds, pause) if pause else seconds)
        except TimeoutError:
            return
        await asyncio.sleep(GATHER_SECONDS)

    def _take(self, work: Work) -> None:
        if self._ready is None or self._closing:
            self.outbox.release(work.held)  # that changed while the row was fetched
        elif work.suspect:
            self._suspects.append(work)
            work.held.on_lost = lambda: self._drop_suspect(work)
        else:
            self._start(work, self._ready)

    def _drop_suspects(self) -> None:
        while self._suspects:
            self.outbox.release(self._suspects.popleft().held)

    def _drop_suspect(self, work: Work) -> None:
        if work in self._suspects:
            self._suspects.remove(work)

    def _start(self, work: Work, ready: Ready) -> None:
        task = asyncio.create_task(self._one(work, ready))
        self._tasks[work.held] = task
        work.held.on_lost = _canceller(task)
        task.add_done_callback(lambda _task: self._ended(work.held))

    def _ended(self, held: Held) -> None:
        self._tasks.pop(held, None)
        if not self._tasks:
            self._alone = False
        if not held.handed and not held.lost:
            self.outbox.release(held)  # cancelled, perhaps before its first step
        if not self.starved or not self._tasks:
            self._wake.set()

    async def _one(self, work: Work, ready: Ready) -> None:
        try:
            ended = await self.runner.run(work, ready)
        except Exception as error:
            log.exception("bug: an item ended in an exception", run=work.held.run)
            leased = work.leased
            failure = Failure(
                leased.item, leased.token, Verdict.MALFORMED, f"{error!r:.400}", charged=False
            )
            self.outbox.fail(work.held, failure)
            return
        self._tell(work.held, ended)
        self.signals.generated(ended.verdict)

    def _tell(self, held: Held, ended: Ended) -> None:
        if ended.finished:
            self.outbox.finish(held, ended.finished)
        elif ended.failure and not (self.on_trial and ended.died):
            self.outbox.fail(held, ended.failure)
        else:
            self.outbox.release(held)
        if not ended.engine_fault:
            self.answered += 1
            self.trust.good()
            return
        if ended.verdict is Verdict.BUSY:
            self.window.pushed_back()
        was = self.trust.condemned
        blamed = ended.failure is not None and not ended.died and ended.verdict is not Verdict.BUSY
        self.trust.fault(time.monotonic(), blamed=blamed)
        if self.trust.condemned and not was:
            self.engine_down()
            self.signals.condemned(f"too many engine faults, the last: {ended.verdict}")


def _canceller(task: asyncio.Task[None]) -> Callable[[], None]:
    def cancel() -> None:
        task.cancel()

    return cancel
