"""One life of an engine: from its start, through service, to the moment that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from common.errors import EngineError
from consumer.engine.failures import KnownFailure, last_words, recognise
from consumer.engine.gpu import gpu_facts, memory_freed
from consumer.engine.health import Liveness, Sample
from consumer.engine.http import EngineHttp
from consumer.engine.process import EngineProcess, not_started

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consumer.engine.api import Engine, EngineLoad, EngineSpec, Launch

T = TypeVar("T")

log = structlog.get_logger(__name__)

_READY_POLL_SECONDS = 0.25
_MEMORY_SECONDS = 30.0
_LAST_SECONDS = 5.0  # between an engine's last answer and the end of its last process
_URL_SILENT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class StartBudget:
    """How long a start may take, and how many failures in a row are too many."""

    start_seconds: float = 1800.0  # until the engine takes requests
    young_seconds: float = 120.0  # a death before so long in service counts as a failed start
    attempts: int = 5  # failed starts in a row; then FATAL
    lives: int = 20  # short lives in a row that were of use, or that a suspect ended; then FATAL
    memory_seconds: float = 3600.0  # two deaths for want of GPU memory within: a smaller engine
    backoff_base_seconds: float = 1.0
    backoff_cap_seconds: float = 60.0
    stop_seconds: float = 20.0  # between SIGTERM and SIGKILL, after the last answer
    kill_seconds: float = 5.0  # the same for an engine that is stuck
    poll_seconds: float = 1.0  # between two looks at its figures


class EngineDownError(Exception):
    """An engine came to its end, or was found unfit."""

    def __init__(
        self, reason: str, *, failure: KnownFailure | None = None, words: str = "", fix: str = ""
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.failure = failure
        self.words = words
        self.fix = failure.fix if failure else fix

    @classmethod
    def of(cls, error: EngineError) -> EngineDownError:
        """Return the end that an error was, of an engine that may be worth another start."""
        return cls(error.what.rstrip("."), words=error.why, fix=error.fix)


class UnfitError(EngineError):
    """The engine works but must not be used: starting it again as it is changes nothing."""


class Life:
    """Runs one engine once. Use :meth:`begin`, then :meth:`watch`, and always :meth:`end`."""

    def __init__(
        self,
        engine: Engine,
        spec: EngineSpec,
        budget: StartBudget,
        *,
        stall_seconds: Callable[[], float],
        in_flight: Callable[[], int],
    ) -> None:
        self.http = EngineHttp(spec.base_url, spec.api_key)
        self.load: EngineLoad | None = None
        self._engine = engine
        self._spec = spec
        self._budget = budget
        self._stall_seconds = stall_seconds
        self._in_flight = in_flight
        self._condemned: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._spawn: asyncio.Task[EngineProcess] | None = None
        self._baseline_bytes: int | None = None
        self._said_waiting = False
        self._over = False  # nothing of it is left to end

    async def begin(self) -> None:
        """Start the engine, or attach to it, and wait until it takes requests.

        Raises:
            EngineDownError: it ended, or did not come up within its budget.
            EngineError: there is nothing to start.
        """
        process = await self._start() if self._spec.url is None else None
        exit_ = asyncio.create_task(self._ended(process))
        try:
            async with asyncio.timeout(self._budget.start_seconds):
                while not await self._ready(exit_):
                    self._say_waiting()
                    await asyncio.wait({exit_}, timeout=_READY_POLL_SECONDS)
        except TimeoutError:
            raise self._down(
                f"it was not ready within {self._budget.start_seconds:g} s", process
            ) from None
        finally:
            exit_.cancel()

    def _say_waiting(self) -> None:
        """Say once that somebody else's server is waited for; what is launched has a log."""
        if self._spec.url is not None and not self._said_waiting:
            log.warning("waiting for a server", service="engine", url=self._spec.url)
        self._said_waiting = True

    async def outlasts(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work`` with the engine, which may come to its end in the middle.

        Raises:
            EngineDownError: it ended, with its last words. What failed with it, if anything did,
                knows only that no answer came.
            Exception: what the work raised, with an engine that lives on.
        """
        process = self._spawn.result() if self._spawn else None
        ended, working = asyncio.create_task(self._ended(process)), asyncio.create_task(work)
        try:
            await asyncio.wait({ended, working}, return_when=asyncio.FIRST_COMPLETED)
            error = working.exception() if working.done() else None
            unanswered = isinstance(error, EngineError) and not isinstance(error, UnfitError)
            if unanswered and process is not None:  # its connections end before its processes
                await asyncio.wait({ended}, timeout=_LAST_SECONDS)
            if ended.done() and (unanswered or not working.done()):
                raise ended.result()
            working.result()
        finally:
            for task in (ended, working):
                task.cancel()
            await asyncio.gather(ended, working, return_exceptions=True)

    async def watch(self) -> EngineDownError:
        """Serve until the engine is down, stuck or condemned; return why."""
        process = self._spawn.result() if self._spawn else None
        return await first_of(self._ended(process), self._stuck(), self._doomed())

    def condemn(self, reason: str) -> None:
        """Let :meth:`watch` return with this reason."""
        if not self._condemned.done():
            self._condemned.set_result(reason)

    async def end(self, grace_seconds: float, *, hurried: asyncio.Event | None = None) -> None:
        """Close the connections and end the engine; a server of somebody else is left alone.

        Once ``hurried`` is set there is no grace any more, and memory is not waited for: that is
        for a next engine. Safe to call again.
        """
        await self.http.close()
        if self._spawn is None or self._over:
            return
        process: EngineProcess | None = None
        with contextlib.suppress(Exception):  # nothing was started; begin() raised why
            process = await asyncio.shield(self._spawn)
        if process is not None:
            hurry = hurried or asyncio.Event()
            if hurry.is_set() or not await first_of(
                self._end_in_order(process, grace_seconds), _never_mind(hurry)
            ):
                await process.end(0.0)
        self._over = True

    async def _end_in_order(self, process: EngineProcess, grace_seconds: float) -> bool:
        await process.end(grace_seconds)
        freed = await memory_freed(
            self._spec.gpu, baseline_bytes=self._baseline_bytes, seconds=_MEMORY_SECONDS
        )
        if not freed:
            await self._say_not_freed()
        return True

    async def _say_not_freed(self) -> None:
        """Say that the next engine finds less memory than this one did, and how much is taken."""
        gpu, before = self._spec.gpu, self._baseline_bytes or 0
        facts = await asyncio.to_thread(gpu_facts, gpu) if gpu is not None else None
        log.warning(
            "engine.memory_not_freed",
            gpu=gpu,
            used_mib=facts.used_bytes >> 20 if facts else None,
            before_mib=before >> 20,
            seconds=_MEMORY_SECONDS,
            fix="nvidia-smi    shows which process still holds it",
        )

    async def _start(self) -> EngineProcess:
        launch = await self._launch()
        # A task of its own: a start that is called off half-way must still be ended.
        self._spawn = asyncio.create_task(EngineProcess.start(launch, self._spec))
        try:
            return await asyncio.shield(self._spawn)
        except EngineError as error:
            raise EngineDownError.of(error) from error

    async def _launch(self) -> Launch:
        """Return how to start it, and look how much of its card's memory is in use before."""
        try:
            launch = await asyncio.to_thread(self._engine.launch, self._spec)
            if self._spec.gpu is not None:
                facts = await asyncio.to_thread(gpu_facts, self._spec.gpu)
                self._baseline_bytes = facts.used_bytes if facts else None
        except (OSError, RuntimeError) as error:
            raise EngineDownError.of(not_started(error, self._spec)) from error
        return launch

    async def _ready(self, exit_: asyncio.Task[EngineDownError]) -> bool:
        asking = asyncio.create_task(self._engine.ready(self.http))
        try:
            await asyncio.wait({exit_, asking}, return_when=asyncio.FIRST_COMPLETED)
            if exit_.done():
                raise exit_.result()
            return asking.result()
        finally:
            asking.cancel()

    async def _ended(self, process: EngineProcess | None) -> EngineDownError:
        if process is None:
            await asyncio.Event().wait()  # somebody else's server: its end shows in silence
        assert process is not None
        code = await process.wait()
        return self._down(f"it ended with code {code}{_by_signal(code)}", process)

    async def _doomed(self) -> EngineDownError:
        return EngineDownError(await self._condemned)

    async def _stuck(self) -> EngineDownError:
        silent = _URL_SILENT_SECONDS if self._spec.url else 60.0
        liveness = Liveness(self._stall_seconds(), silent_seconds=silent)
        while True:
            self.load = await self._sample()
            liveness.stall_seconds = self._stall_seconds()
            sample = Sample(time.monotonic(), self._in_flight(), self.http.answered, self.load)
            if reason := liveness.stuck(sample):
                return EngineDownError(f"it is stuck: {reason}")
            await asyncio.sleep(self._budget.poll_seconds)

    async def _sample(self) -> EngineLoad | None:
        try:
            async with asyncio.timeout(self._stall_seconds() / 2):
                return await self._engine.load(self.http)
        except TimeoutError:
            return None

    def _down(self, reason: str, process: EngineProcess | None) -> EngineDownError:
        lines = process.last_lines() if process else []
        return EngineDownError(reason, failure=recognise(lines[-80:]), words=last_words(lines))


async def first_of(*ways: Coroutine[Any, Any, T]) -> T:
    """Return what comes out of the way that ends first; the others are called off."""
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task.result() for task in tasks if task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _never_mind(hurried: asyncio.Event) -> bool:
    """Return False once the order that takes its time is called off."""
    await hurried.wait()
    return False


def _by_signal(code: int) -> str:
    number = code - 128 if code > 128 else -code
    names = {
        9: " (killed: by itself, by the system for want of memory, or by hand)",
        15: " (SIGTERM)",
    }
    return names.get(number, "")
