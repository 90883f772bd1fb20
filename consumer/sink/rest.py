"""How long a sink leaves a run alone that is over: there are more of them every week."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_SECONDS = 10.0  # until an end that was written is looked at: it may have been taken away
LONGEST_SECONDS = 600.0  # between looks at one that has stood for long


class Rest:
    """When to look at a run again: soon, then ever later, or as soon as it is woken."""

    def __init__(self, stop: asyncio.Event, clock: Callable[[], float]) -> None:
        self._stop = stop
        self._clock = clock
        self._woken = asyncio.Event()
        self._seconds = 0.0
        self._until = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to look."""
        return self._clock() >= self._until

    def begin(self) -> None:
        """Something has happened: the next look is soon."""
        self._rest(FIRST_SECONDS)

    def go_on(self) -> None:
        """Nothing has: the next look is later than this one was."""
        self._rest(min(max(2 * self._seconds, FIRST_SECONDS), LONGEST_SECONDS))

    def wake(self) -> None:
        """End the wait: there is news."""
        self._woken.set()

    async def wait(self) -> None:
        """Wait until it is time to look, or there is news, or the sink is told to stop."""
        left = max(0.0, self._until - self._clock())
        waits = [asyncio.create_task(event.wait()) for event in (self._woken, self._stop)]
        try:
            await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._woken.clear()

    def _rest(self, seconds: float) -> None:
        self._seconds = seconds
        # Not all at one time: a sink that starts finds many at once.
        self._until = self._clock() + seconds * random.uniform(0.5, 1)
