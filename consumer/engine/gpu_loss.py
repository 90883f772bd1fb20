"""When a card counts as lost for its engine: two witnesses, the driver and the engine's silence.

The driver alone is not believed, since an engine that makes tokens has its card; nor is silence
alone, since a long step looks the same. Both together end a consumer: no other start helps.
A driver that does not answer at all is a witness as one that says it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from common.errors import EngineError
from consumer.engine.gpu_watch import SILENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer.engine.gpu_watch import GpuWatch

QUIET_SECONDS = 10.0  # without a token and an answer, while the driver calls the card lost
POLL_SECONDS = 0.25
FRESH_SECONDS = 2.0  # a look takes milliseconds; a driver that takes longer is waited for elsewhere
FRESH_POLL_SECONDS = 0.01


class CardLostError(EngineError):
    """The engine's card is lost: starting it again changes nothing."""


class Silence:
    """How long an engine has given no sign of work while its card is called lost. Pure."""

    def __init__(self) -> None:
        self._work = -1
        self._since: float | None = None

    def seconds(self, now: float, *, lost: bool, work: int) -> float:
        """Take one sample; ``work`` grows with every token and every answer."""
        worked, self._work = work > self._work, max(work, self._work)
        if not lost:
            self._since = None
        elif worked or self._since is None:
            self._since = now
        return 0.0 if self._since is None else now - self._since


async def lost_in_service(watch: GpuWatch, work: Callable[[], int]) -> CardLostError:
    """Wait until the card is lost for the engine that runs on it; return the words for it."""
    silence = Silence()
    while True:
        lost = bool(watch.lost)
        quiet = silence.seconds(time.monotonic(), lost=lost, work=work())
        if lost and quiet >= QUIET_SECONDS:
            return card_lost(watch, f"its engine gave no token and no answer for {quiet:.0f} s")
        await asyncio.sleep(POLL_SECONDS)


async def lost_at_the_end(watch: GpuWatch, reason: str) -> CardLostError | None:
    """Return the words for the loss of a card whose engine came to its end, if it is lost.

    The card may have been lost since the newest look, and the engine by that: it is looked at
    again first. Where the newest look alone says so, the next ones are waited for.
    """
    number, late = watch.look_again(), time.monotonic() + FRESH_SECONDS
    while not watch.has_looked(number) and time.monotonic() < late:  # noqa: ASYNC110 - as below
        await asyncio.sleep(FRESH_POLL_SECONDS)
    while watch.suspicion and not watch.lost:  # noqa: ASYNC110 - the looks are another thread's
        await asyncio.sleep(POLL_SECONDS)
    return card_lost(watch, f"its engine is down: {reason}") if watch.lost else None


def card_lost(watch: GpuWatch, engine: str) -> CardLostError:
    """Return what a person is told."""
    return CardLostError(
        f"{watch.name} is lost.",
        why=f"{_says(watch.lost)}, and {engine}.",
        fix="dmesg | grep -i xid    names the cause. The card needs a reset, or its machine a"
        " restart; consumers of other cards go on.",
    )


def _says(lost: str) -> str:
    if lost == SILENT:
        return "Its driver does not answer any more"
    return f"Its driver says so again and again ({lost})"
