"""Services that start before Redis or object storage do: they wait, and say for what."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, TypeVar

import structlog

from common.errors import GenqError, QueueAwayError, StoreAwayError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 5.0
REMIND_SECONDS = 60.0

T = TypeVar("T")
log = structlog.get_logger()


async def once_there(call: Callable[[], Awaitable[T]], *, seconds: float) -> T:
    """Return what ``call`` returns, called again while its server does not answer.

    Says what it waits for at once, and again each minute.

    Raises:
        GenqError: what ``call`` raised: at once where waiting cannot help (a wrong password, a
            missing bucket), and after ``seconds`` where it did not.
    """
    until, wait, remind = 0.0, FIRST_SECONDS, 0.0
    while True:
        try:
            return await call()
        except (QueueAwayError, StoreAwayError) as error:
            until = until or time.monotonic() + seconds  # not before: one call may take a while
            left = until - time.monotonic()
            if left <= 0:
                raise
            if time.monotonic() >= remind:
                remind = time.monotonic() + REMIND_SECONDS
                _say(error, left)
        await asyncio.sleep(min(left, wait * random.uniform(0.5, 1)))
        wait = min(LONGEST_SECONDS, 2 * wait)


def _say(error: GenqError, left: float) -> None:
    log.warning(
        "waiting for a server",
        what=error.what,
        why=error.why,
        fix=error.fix,
        longest_seconds=round(left),
    )
