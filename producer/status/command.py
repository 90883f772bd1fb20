"""`gen-producer status`: look once, or again and again. Changes nothing."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import TYPE_CHECKING, Any

from common.errors import Exit, QueueError, StoreError
from common.ids import RunName, run_name
from common.redis_client import connect
from producer.status.as_json import JSON_VERSION, run_json, stored_json
from producer.status.data import RunStatus, Watcher, look_in_store
from producer.status.live import open_screen
from producer.status.view import MAX_WIDTH, fold, row, screen, stored_screen

if TYPE_CHECKING:
    from common.settings import Settings
    from producer.console import Console

_NONE = "No run is in Redis.\nNext: gen-producer load DATASET    (or, after a loss: --run NAME)"


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
        UsageError: neither Redis nor object storage knows the run.
        QueueError: Redis cannot be used; while watching this is said, and tried again.
        StoreError: neither can object storage, of a run that Redis does not know; the same.
    """
    name = run_name(run) if run is not None else None
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
        return await watcher.look(run), watcher.known


async def _watch(
    run: RunName | None,
    seconds: float,
    settings: Settings,
    console: Console,
    price: float | None,
) -> None:
    async with await connect(settings, name="status") as client:
        watcher = Watcher(client, settings, price=price)
        with open_screen(console, seconds) as shown:
            while True:
                try:
                    found = await watcher.look(run)
                    answer = _answer(run, found, watcher.known, settings, rows=shown.rows)
                except (QueueError, StoreError) as error:
                    shown.trouble(f"{error.what} Trying again.")
                else:
                    shown.show(*answer)
                    if all(_is_over(status, settings) for status in found):
                        return
                await asyncio.sleep(seconds)


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
        return _NONE, data
    if len(found) == 1:
        return screen(found[0], width=width, rows=rows), data
    cut = width if sys.stdout.isatty() else None  # what is read by others is whole
    return "\n".join(row(status, width=cut) for status in found), data
