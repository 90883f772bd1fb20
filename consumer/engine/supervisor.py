"""Keeps one engine alive: starts it, watches it, restarts it, and knows when to give up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from common.errors import EngineError
from consumer.engine.api import Engine, EngineFacts, EngineLoad, EngineSpec
from consumer.engine.crashloop import CrashLoop, MemoryDeaths
from consumer.engine.gpu import EngineLock
from consumer.engine.gpu_loss import lost_at_the_end, lost_in_service
from consumer.engine.gpu_watch import GpuWatch
from consumer.engine.http import EngineHttp
from consumer.engine.leftovers import end_leftovers
from consumer.engine.life import EngineDownError, Life, StartBudget, UnfitError, first_of
from consumer.engine.process import log_path
from consumer.engine.states import EngineState, transition

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Signals", "StartBudget", "Supervisor", "UnfitError"]

log = structlog.get_logger(__name__)

Check = Callable[[Engine, EngineHttp, EngineSpec, EngineFacts], Awaitable[None]]


def _nothing(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Signals:
    """What tests and metrics may listen to."""

    on_state: Callable[[EngineState, int], None] = _nothing  # the new state, the incarnation


class Supervisor:
    """One engine under supervision.

    Promises: at most one engine at its place; after a crash, a stall or a condemnation it comes
    back with growing pauses, and after ``budget.attempts`` failed starts in a row it stays FATAL,
    with the engine's last words (after ``budget.lives``, where a life answered something or was
    ended by an item under suspicion). A card that its driver calls lost, look after look, or of
    which it says nothing any more, is FATAL at once while the engine gives no sign of work. Where
    an engine ran out of GPU memory twice within ``budget.memory_seconds``, the next one takes a
    step less of it: ``lowered`` says what. When an incarnation that was READY goes down,
    ``on_down`` is called once, with its number and the reason, and then every call on its ``http``
    ends.
    Does not drain: stop feeding before :meth:`stop`.

    Args:
        engine: the dialect.
        spec: what to run; with a url, a server to attach to, which is never ended.
        budget: times and attempts.
        stall_seconds: longest without a sign of work while requests are in flight; an attribute,
            because it is the served runs' matter, and they change.
        signals: listeners.
        in_flight: how many requests wait for an answer now.
        on_down: told of each end in service.
        answered: how many items engines have answered so far; an attribute, as the next.
        suspected: whether what is in flight now is an item under suspicion, alone.
        check: called before READY; raises UnfitError for an engine that must not serve (FATAL).
        card: looks at the engine's card, from :meth:`start` to :meth:`stop`.
    """

    def __init__(
        self,
        engine: Engine,
        spec: EngineSpec,
        *,
        budget: StartBudget | None = None,
        stall_seconds: float = 300.0,
        signals: Signals | None = None,
        in_flight: Callable[[], int] = lambda: 0,
        on_down: Callable[[int, str], None] = _nothing,
        check: Check | None = None,
        card: GpuWatch | None = None,
    ) -> None:
        self.engine = engine
        self.spec = spec
        self.state = EngineState.STOPPED
        self.incarnation = 0
        self.restarts = 0
        self.facts: EngineFacts | None = None
        self.last_error: EngineError | None = None
        self.lowered: list[str] = []  # what was made smaller for want of GPU memory, in words
        self.in_flight = in_flight
        self.on_down = on_down
        self.stall_seconds = stall_seconds
        self.answered: Callable[[], int] = lambda: 0
        self.suspected: Callable[[], bool] = lambda: False
        self._budget = budget or StartBudget()
        self._loop = CrashLoop(self._budget.attempts, self._budget.lives)
        self._memory = MemoryDeaths(self._budget.memory_seconds)
        self._signals = signals or Signals()
        self._check = check
        self.card = card or GpuWatch(spec.gpu)
        self._lock = EngineLock(spec)
        self._life: Life | None = None
        self._ready_at: float | None = None  # when the present incarnation began to serve
        self._task: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()

    @property
    def http(self) -> EngineHttp:
        """The session to the present incarnation; another one after each start.

        Raises:
            EngineError: there is none yet.
        """
        if self._life is None:
            raise EngineError("The engine has not been started.")
        return self._life.http

    @property
    def load(self) -> EngineLoad | None:
        """The newest sample of the engine's figures, at most some seconds old in service."""
        return self._life.load if self._life else None

    async def start(self) -> None:
        """Take the place, end what a killed consumer left there, and begin to start.

        Raises:
            ConflictError: another consumer has this GPU.
        """
        if self.spec.url is None:
            await asyncio.to_thread(self._lock.acquire)
            await asyncio.to_thread(end_leftovers, self.spec.state_dir)
        self.card.start()
        await self._to(EngineState.STARTING)
        self._preparing = asyncio.create_task(self._prepare())
        self._task = asyncio.create_task(self._run(), name=f"supervisor {self.spec.name}")

    async def wait_ready(self) -> EngineFacts:
        """Wait until the engine takes requests.

        Raises:
            EngineError: it is FATAL, or was stopped.
        """
        await self.wait_for(EngineState.READY, EngineState.FATAL, EngineState.STOPPED)
        if self.state is EngineState.READY and self.facts is not None:
            return self.facts
        raise self.last_error or EngineError("The engine was stopped.")

    async def wait_for(self, *states: EngineState) -> EngineState:
        """Wait until the engine is in one of ``states``; return it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.state in states)
            return self.state

    def condemn(self, reason: str) -> None:
        """Have a READY engine killed and started anew; else do nothing."""
        if self._life is not None and self.state is EngineState.READY:
            self._life.condemn(reason)

    async def stop(self, *, now: bool = False, hurried: asyncio.Event | None = None) -> None:
        """End the engine: SIGTERM, a grace, SIGKILL; no grace with ``now``. Safe to call again.

        A next engine may start after it: the card's memory is waited for. Once ``hurried`` is set
        there is none, and nothing is waited for but the end of the processes.
        """
        if self.state in (EngineState.STOPPED, EngineState.DRAINING):
            return
        if self.state is not EngineState.FATAL:
            await self._to(EngineState.DRAINING)
        tasks = [task for task in (self._task, self._preparing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        grace_seconds = 0.0 if now else self._budget.stop_seconds
        try:
            if self._life is not None:
                await self._life.end(grace_seconds, hurried=hurried)
        finally:
            self.card.stop()
            self._lock.release()
            await self._to(EngineState.STOPPED)

    async def _prepare(self) -> None:
        try:
            await self.engine.prepare(self.spec)
        except Exception as error:  # noqa: BLE001 - what needs it meets the same, and tells it
            log.debug("engine.not_prepared", why=repr(error))

    async def _run(self) -> None:
        try:
            await self._supervise()
        except Exception as error:
            self.last_error = EngineError("The supervisor itself failed.", why=repr(error))
            log.exception("engine.supervisor_failed")
            self.state = EngineState.FATAL
            async with self._changed:
                self._changed.notify_all()
            self._tell_down(self.last_error.what)
            if self._life is not None:  # nobody watches what still runs there
                await self._life.http.close()

    async def _supervise(self) -> None:
        while True:
            down = await self._live()
            self.last_error = self._error(down)
            if isinstance(down, EngineError) or _lasting(down) or self._loop.over:
                await self._to(EngineState.FATAL)
                return
            if _out_of_memory(down) and self._memory.died(time.monotonic()):
                self._lower()
            await asyncio.sleep(self._pause())
            self.restarts += 1
            await self._to(EngineState.STARTING)

    def _lower(self) -> None:
        """Let the next engine take a step less of the GPU's memory, if there is such a step."""
        minutes = round(self._budget.memory_seconds / 60)
        why = f"it ran out of GPU memory twice within {minutes} minutes"
        lighter = self.engine.lighter(self.spec, self.facts)
        if lighter is None:
            log.warning("engine.not_lowered", why=why, because="nothing is known to be lowered")
            return
        self.spec, change = lighter
        self.lowered.append(change)
        log.warning("engine.lowered", change=change, why=why)

    async def _live(self) -> EngineDownError | EngineError:
        """Run one incarnation to its end; return why it ended."""
        self.incarnation += 1
        life = self._life = Life(
            self.engine,
            self.spec,
            self._budget,
            stall_seconds=lambda: self.stall_seconds,
            in_flight=self.in_flight,
        )
        answered = self.answered()
        self._ready_at = None
        down: EngineDownError | EngineError = await first_of(
            self._serve(life), self._card_lost(life)
        )
        ready_at: float | None = self._ready_at
        served = 0.0 if ready_at is None else time.monotonic() - ready_at
        self._loop.ended(
            long=served >= self._budget.young_seconds,
            useful=self.answered() > answered,
            suspect=ready_at is not None and self.suspected(),
        )
        log.warning("engine.down", reason=str(down), incarnation=self.incarnation, served=served)
        await self._to(EngineState.BACKOFF)
        self._tell_down(down.what if isinstance(down, EngineError) else str(down))
        await life.end(self._budget.kill_seconds)
        if isinstance(down, EngineDownError) and self.spec.url is None:
            return await lost_at_the_end(self.card, down.reason) or down
        return down

    def _tell_down(self, reason: str) -> None:
        """Tell of an end in service, once."""
        if self._ready_at is not None:
            self._ready_at = None
            self.on_down(self.incarnation, reason)

    async def _serve(self, life: Life) -> EngineDownError | EngineError:
        try:
            await life.begin()
            await self._to(EngineState.WARMING)
            await self._warm(life)
            self._ready_at = time.monotonic()
            await self._to(EngineState.READY)
            return await life.watch()
        except (EngineDownError, EngineError) as error:
            return error

    async def _card_lost(self, life: Life) -> EngineError:
        """Return once the card is lost; of an engine that runs elsewhere it is not known which."""
        if self.spec.url is not None:
            await asyncio.Event().wait()
        return await lost_in_service(
            self.card, lambda: life.http.answered + (life.load.work if life.load else 0)
        )

    async def _warm(self, life: Life) -> None:
        try:
            await life.outlasts(self._look_at(life.http))
        except UnfitError:
            raise
        except EngineError as error:  # it does not answer: worth another start
            raise EngineDownError.of(error) from error

    async def _look_at(self, http: EngineHttp) -> None:
        self.facts = await self.engine.facts(http, self.spec)
        if self._check is not None:
            await self._check(self.engine, http, self.spec, self.facts)

    async def _to(self, state: EngineState) -> None:
        self.state = transition(self.state, state)
        log.info("engine.state", state=str(state), incarnation=self.incarnation)
        self._signals.on_state(state, self.incarnation)
        async with self._changed:
            self._changed.notify_all()

    def _pause(self) -> float:
        doublings = min(max(self._loop.in_a_row - 1, 0), 20)
        longest = self._budget.backoff_base_seconds * 2.0**doublings
        pause: float = min(self._budget.backoff_cap_seconds, longest)
        return random.uniform(0.5, 1.0) * pause

    def _error(self, down: EngineDownError | EngineError) -> EngineError:
        if isinstance(down, EngineError):
            return down
        failed = self._loop.in_a_row
        times = f" {failed} times in a row" if failed > 1 else ""
        cause = f"{down.failure.cause}\n" if down.failure else ""
        return EngineError(
            f"The engine failed{times}: {down.reason}.",
            why=f"{cause}{down.words}".strip(),
            fix=down.fix or f"Read its log: {_log(self.spec)}",
        )


def _lasting(down: EngineDownError | EngineError) -> bool:
    return isinstance(down, EngineDownError) and bool(down.failure and down.failure.lasting)


def _out_of_memory(down: EngineDownError | EngineError) -> bool:
    return isinstance(down, EngineDownError) and bool(down.failure and down.failure.memory)


def _log(spec: EngineSpec) -> Path | str:
    return "the one of the server at " + spec.url if spec.url else log_path(spec)
