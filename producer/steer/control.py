"""Steering a run: pause, resume, cancel. Each command may be given twice."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, TypeVar

import click

from common.errors import ConflictError, Exit, StoreError, UsageError
from common.ids import RunName, run_name
from common.no_such_run import not_in_redis
from common.queue.run_state import Runs
from common.queue.same_run import refuse_other_store
from common.queue.scripts import run_is_over
from common.redis_client import connect
from common.s3 import open_store
from common.unfinished import is_unfinished, keep_cancelled
from producer.steer.acceptance import held_error, keep_accepted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from common.audit import RunCounts
    from common.objectstore import ObjectStore
    from common.records import RunInfo
    from common.settings import Settings
    from producer.console import Console

T = TypeVar("T")
JSON_VERSION = 1


def run_pause(run: str, settings: Settings, console: Console) -> int:
    """Pause a run; one that is held stays held."""
    if ask(run, settings, lambda runs, info: runs.pause(info.run)) == "held":
        words = f"Run {run} is held already: nothing is handed out. gen-producer status {run}"
        return done(console, run, "held", words)
    return done(console, run, "paused", f"Run {run} is paused. Next: gen-producer resume {run}")


def run_resume(run: str, settings: Settings, console: Console, *, accept: bool) -> int:
    """Resume a paused run; with ``accept`` a held one, too, and it is not held for that again.

    What is accepted is on object storage before Redis knows it, so that no loss forgets it.

    Raises:
        ConflictError: it is held, and that is not accepted; or it is kept in another store.
        StoreError: what is accepted cannot be kept; the run is still held.
    """

    async def resume(runs: Runs, info: RunInfo) -> None:
        if not accept:
            if await runs.resume(info.run) == "held":
                raise held_error(run, await runs.sample(info.run))
            return
        canary = (await runs.sample(info.run)).canary
        if canary.state == "held":
            reasons = {*canary.accepted, canary.held_for}
            await asyncio.to_thread(keep_accepted, own_store(info, settings), info.run, reasons)
        await runs.accept(info.run)

    ask(run, settings, resume)
    return done(console, run, "open", f"Run {run} goes on.")


def run_cancel(run: str, settings: Settings, console: Console, *, yes: bool, dry_run: bool) -> int:
    """Cancel a run, after asking; who says no has changed nothing. A dry run is refused alike.

    That it is cancelled is kept on object storage, too, where the settings name it: a run that
    Redis has lost with all it knew is no run that waits, then.

    Raises:
        RunClosedError: it is finished.
        UsageError: neither Redis nor the store has such a run that is not finished, or nobody is
            there to be asked, and ``yes`` is not given.
    """

    async def look(runs: Runs, info: RunInfo) -> RunCounts:
        if info.state == "closed":
            raise run_is_over(info.run, "closed", "cannot be cancelled")
        return await runs.sample(info.run)

    counts = ask(run, settings, look, absent=lambda error: _refuse_unstored(run, settings, error))
    if not (yes or dry_run or sys.stdin.isatty()):
        raise UsageError(
            f"Run {run} is not cancelled: nobody can be asked.",
            why="Standard input is no terminal.",
            fix=f"Add --yes: gen-producer cancel {run} --yes",
        )
    drop = counts.queued + counts.waiting + counts.leased if counts else 0
    text = "It is not in Redis: what it has committed stays."
    if counts:
        text = f"{drop:,} of {counts.total:,} items would be dropped; {counts.committed:,} stay."
    if dry_run:
        return done(console, run, "dry-run", f"Run {run}: {text}", dropped=drop)
    if not yes and not click.confirm(f"Cancel run {run}? {text}", err=True):
        return done(console, run, "kept", f"Run {run} is not cancelled. Nothing was changed.")
    words = f"Run {run} is cancelled. It is not in Redis; what it has committed stays."
    if counts:
        ask(run, settings, lambda runs, info: _cancel(runs, info, settings, console))
        words = f"Run {run} is cancelled: {drop:,} items dropped, {counts.committed:,} committed"
        words += " stay."
    else:
        keep_cancelled(open_store(settings), run_name(run))
    return done(
        console, run, "cancelled", f"{words}\nTo go on: gen-producer load --run {run}", dropped=drop
    )


def _refuse_unstored(run: str, settings: Settings, error: UsageError) -> None:
    """Return if a run that Redis does not know is one that the store has, and not finished."""
    if not settings.store or not is_unfinished(open_store(settings), run_name(run)):
        raise error


async def _cancel(runs: Runs, info: RunInfo, settings: Settings, console: Console) -> None:
    await runs.cancel(info.run)
    try:
        await asyncio.to_thread(keep_cancelled, own_store(info, settings), info.run)
    except (ConflictError, StoreError, UsageError) as error:
        console.warn(
            f"Note: only Redis knows that run {info.run} is cancelled. {error.what} Given again"
            " with that mended, this command keeps it there, too."
        )


def ask(
    run: str,
    settings: Settings,
    call: Callable[[Runs, RunInfo], Awaitable[T]],
    *,
    absent: Callable[[UsageError], T] | None = None,
) -> T:
    """Call with the run as Redis knows it; where it does not, return what ``absent`` does.

    ``absent`` is given the error that says so.

    Raises:
        UsageError: it does not know the run, and there is no ``absent``.
        QueueError: Redis cannot be used.
    """
    name: RunName = run_name(run)

    async def go() -> tuple[T] | UsageError:
        async with await connect(settings, name="control") as client:
            runs = Runs(client, settings.limits())
            info = await runs.get(name)
            if info is None:
                return not_in_redis(name, [one.run for one in await runs.list()])
            return (await call(runs, info),)

    answer = asyncio.run(go())
    if isinstance(answer, tuple):
        return answer[0]
    if absent is None:
        raise answer
    return absent(answer)


def own_store(info: RunInfo, settings: Settings) -> ObjectStore:
    """Return the store that the settings name, which is the one that keeps the run.

    Raises:
        ConflictError: the run is kept in another store.
        UsageError: no store is named.
    """
    store = open_store(settings)
    refuse_other_store(info, store.url)
    return store


def done(console: Console, run: str, outcome: str, words: str, **more: int | str) -> int:
    """Say what a command came to, in words and as data."""
    console.result(words, {"version": JSON_VERSION, "run": run, "outcome": outcome, **more})
    return Exit.DONE
