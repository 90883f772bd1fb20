"""How a consumer is told to stop: once to drain, twice to stop now."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import structlog

from common.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

CANCEL_AGAIN_SECONDS = 1.0
SIGNALS = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}

log = structlog.get_logger()


class Stopping:
    """Whether to stop, how fast, and with which exit code.

    ``forgive_seconds``: signals this soon after the first are the same one. RQ's pool sends its
    own on top of the terminal's.
    """

    def __init__(self, *, forgive_seconds: float = 0.0) -> None:
        self.code = Exit.DONE
        self.hurried = asyncio.Event()
        self._asked = asyncio.Event()
        self._asked_at = 0.0
        self._forgive_seconds = forgive_seconds

    async def wait(self) -> None:
        """Wait until the consumer is asked to stop."""
        await self._asked.wait()

    def ask(self, code: Exit) -> None:
        """Ask to drain and end with ``code``; asked again: to stop now."""
        now = time.monotonic()
        if not self._asked.is_set():
            self.code = code
            self._asked_at = now
            self._asked.set()
        elif code is not Exit.DONE and now - self._asked_at >= self._forgive_seconds:
            self.hurried.set()

    def ask_from_thread(self, code: Exit) -> Callable[[], None]:
        """Return a function for other threads that asks."""
        loop = asyncio.get_running_loop()

        def ask() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.ask, code)

        return ask

    def listen(self) -> None:
        """Take SIGINT and SIGTERM from now on."""
        loop = asyncio.get_running_loop()
        for number, code in SIGNALS.items():
            loop.add_signal_handler(number, self._signalled, number, code)

    def deafen(self) -> None:
        """Leave signals to others again."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _signalled(self, number: int, code: Exit) -> None:
        first = not self._asked.is_set()
        self.ask(code)
        if first:
            log.info(
                "stopping: nothing is leased any more, what runs may finish; again to stop now",
                signal=signal.Signals(number).name,
            )
        elif self.hurried.is_set():
            log.info("stopping now; what was in flight is given back, uncharged")


async def end_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended; how they ended is left to who asks them.

    Once is not enough: before Python 3.12 `asyncio.wait_for`, by which the Redis client writes,
    swallows a cancellation that comes when it has just got its answer.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
