"""`gen-producer status`: look once, or again and again. Changes nothing."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from common.errors import Exit, QueueAwayError, QueueError, StoreError
from common.ids import RunName, run_name
from common.redis_client import connect
from common.s3 import open_store
from producer.status.as_json import JSON_VERSION, run_json, stored_json
from producer.status.data import RunStatus, Watcher, look_in_store
from producer.status.live import open_screen
from producer.status.state import doubtful
from producer.status.unfinished import unfinished, unfinished_words
from producer.status.view import MAX_WIDTH, fold, row, screen, stored_screen

if TYPE_CHECKING:
    import redis.asyncio

    from common.settings import Settings
    from producer.console import Console
    from producer.status.live import Screen

LOOK_SECONDS = 5.0  # consumers look for runs every second, and say a second later what they serve
_AGAIN_SECONDS = 0.5


def run_status(
    run: str | None,
    watch: float | None,
    settings: Settings,
    console: Console,
    *,
    price: float | None = None,
) -> int:
    """Show how a run stands, or all of them. ``price``: of a GPU for an hour.

    Raises:
        UsageError: neither Redis nor object storage knows the run; what is named is no store.
        QueueError: Redis cannot be used; while watching this is said, and tried again.
        StoreError: neither can object storage, of a run that Redis does not know; the same.
    """
    name = run_name(run) if run is not None else None
    if settings.store:
        open_store(settings)  # without one there is less to see; with a wrong one nobody knows that
    if watch is None:
        found, known = asyncio.run(_look_once(name, settings, price))
        console.result(*_answer(name, found, known, settings))
    else:
        asyncio.run(_watch(name, watch, settings, console, price))
    return Exit.DONE


async def _look_once(
    run: RunName | None, settings: Settings, price: float | None
) -> tuple[list[RunStatus], list[RunName]]:
    """Return how the run stands, or all runs, and the runs that Redis knows."""
    async with await connect(settings, name="status") as client:
        watcher = Watcher(client, settings, price=price)
        return await Sure(watcher).look(run), watcher.known


async def _watch(
    run: RunName | None,
    seconds: float,
    settings: Settings,
    console: Console,
    price: float | None,
) -> None:
    with open_screen(console, seconds) as shown:
        async with await _connected(settings, shown, seconds) as client:
            watcher = Watcher(client, settings, price=price)
            sure = Sure(watcher)
            while True:
                try:
                    found = await sure.look(run)
                    answer = _answer(run, found, watcher.known, settings, rows=shown.rows)
                except (QueueError, StoreError) as error:
                    shown.trouble(f"{error.what} Trying again.")
                else:
                    shown.show(*answer)
                    if all(_is_over(status, settings) for status in found):
                        return
                await asyncio.sleep(seconds)


async def _connected(settings: Settings, shown: Screen, seconds: float) -> redis.asyncio.Redis:
    """Return a client; while Redis is away this is said, and tried again.

    Raises:
        QueueError: it answers, and cannot be used.
    """
    while True:
        try:
            return await connect(settings, name="status")
        except QueueAwayError as error:
            shown.trouble(f"{error.what} Trying again.")
        await asyncio.sleep(seconds)


class Sure:
    """Looks again before it tells of a stall that consumers may end within seconds."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._told: set[RunName] = set()  # the runs whose stall has lasted

    async def look(self, run: RunName | None) -> list[RunStatus]:
        """As :meth:`Watcher.look`; lasts up to ``LOOK_SECONDS`` longer where a stall is new."""
        until = time.monotonic() + LOOK_SECONDS
        while True:
            found = await self._watcher.look(run)
            doubts = {status.info.run for status in found if doubtful(status)}
            if doubts <= self._told or time.monotonic() >= until:
                self._told = doubts
                return found
            await asyncio.sleep(_AGAIN_SECONDS)


def _is_over(status: RunStatus, settings: Settings) -> bool:
    """Tell whether a look can show nothing new; without a store nobody waits for its _SUCCESS."""
    finished = status.success or (status.success is None and not settings.store)
    return status.info.state == "cancelled" or (status.info.state == "closed" and bool(finished))


def _answer(
    run: RunName | None,
    found: list[RunStatus],
    known: list[RunName],
    settings: Settings,
    *,
    rows: int | None = None,
) -> tuple[str, dict[str, Any]]:
    """Return the answer in words and as data."""
    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    if run is not None and not found:
        stored = look_in_store(settings, run, known)
        lines = stored_screen(stored).split("\n")
        return "\n".join(p for line in lines for p in fold(line, width)), stored_json(stored)
    if run is not None:
        return screen(found[0], width=width, rows=rows), run_json(found[0])
    data = {"version": JSON_VERSION, "runs": [run_json(status) for status in found]}
    if not found:
        left = unfinished(settings)
        data["unfinished"] = left.runs if left is not None and not left.trouble else None
        return unfinished_words(left), data
    if len(found) == 1:
        return screen(found[0], width=width, rows=rows), data
    cut = width if sys.stdout.isatty() else None  # what is read by others is whole
    return "\n".join(row(status, width=cut) for status in found), data
