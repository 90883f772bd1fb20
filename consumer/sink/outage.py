"""What cannot be reached is tried again until it can, and said once, not at every try."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, TypeVar

import structlog

from consumer.sink.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from common.errors import GenqError

T = TypeVar("T")
log = structlog.get_logger()
FIRST_SECONDS = 0.2
LONGEST_SECONDS = 15.0


class StoppingError(Exception):
    """The sink was told to stop while it waited; what is in hand stays unacknowledged."""


class Outage:
    """Calls to one service that may be away for hours."""

    def __init__(
        self,
        service: str,
        stop: asyncio.Event,
        *,
        retried: type[GenqError],
        final: tuple[type[GenqError], ...] = (),
        figures: Figures | None = None,
    ) -> None:
        self._service = service
        self._stop = stop
        self._retried = retried
        self._final = final
        self._figures = figures or Figures()

    async def outlast(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what ``call`` returns, as soon as it does.

        All callers that share the figures are in one outage: it is said by the first of them, and
        that it is over when the last has its answer.

        Raises:
            StoppingError: the sink was told to stop before that.
            GenqError: one of the kinds that waiting does not heal.
        """
        wait_seconds, away, answered = FIRST_SECONDS, False, False
        try:
            while True:
                try:
                    answer = await call()
                except self._retried as error:
                    if isinstance(error, self._final):
                        answered = True
                        raise
                    self._say_away(error, first=not away)
                    away = True
                else:
                    answered = True
                    return answer
                await pause(self._stop, wait_seconds * random.uniform(0.5, 1))
                if self._stop.is_set():
                    raise StoppingError
                wait_seconds = min(2 * wait_seconds, LONGEST_SECONDS)
        finally:
            if away:
                self._leave(say=answered)

    def _say_away(self, error: GenqError, *, first: bool) -> None:
        self._figures.failed_calls[self._service] += 1
        if not first:
            return
        self._figures.away[self._service] += 1
        if self._figures.away[self._service] == 1:
            log.warning(
                "sink.away", service=self._service, what=error.what, why=error.why, fix=error.fix
            )

    def _leave(self, *, say: bool) -> None:
        self._figures.away[self._service] -= 1
        if say and not self._figures.away[self._service]:
            log.info("sink.back", service=self._service)


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait for ``seconds``, or until the sink is told to stop."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
