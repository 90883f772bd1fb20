"""Steering a run: pause, resume, cancel, dead letters. Each command may be given twice."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from common.errors import Exit, InputError, RunClosedError, UsageError
from common.ids import RunName, run_name
from common.objectstore import RunPaths, open_store
from common.queue.run_state import Runs
from common.records import Verdict
from common.redis_client import connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from common.objectstore import ObjectStore
    from common.records import RunInfo
    from common.settings import Settings
    from producer.console import Console

T = TypeVar("T")
JSON_VERSION = 1


def run_pause(run: str, settings: Settings, console: Console) -> int:
    """Pause a run."""
    _ask(run, settings, lambda runs, info: runs.pause(info.run))
    return _done(console, run, "paused", f"Run {run} is paused. Next: gen-producer resume {run}")


def run_resume(run: str, settings: Settings, console: Console) -> int:
    """Resume a paused or held run."""
    _ask(run, settings, lambda runs, info: runs.resume(info.run))
    return _done(console, run, "open", f"Run {run} goes on.")


def run_cancel(run: str, settings: Settings, console: Console, *, yes: bool, dry_run: bool) -> int:
    """Cancel a run, after asking.

    Raises:
        RunClosedError: it is finished.
    """
    counts = _ask(run, settings, lambda runs, info: runs.sample(info.run))
    drop = counts.queued + counts.waiting + counts.leased
    text = f"{drop:,} of {counts.total:,} items would be dropped; {counts.committed:,} stay."
    if dry_run:
        return _done(console, run, "dry-run", f"Run {run}: {text}", dropped=drop)
    if not yes:
        click.confirm(f"Cancel run {run}? {text}", abort=True, err=True)
    _ask(run, settings, lambda runs, info: runs.cancel(info.run))
    words = f"Run {run} is cancelled: {drop:,} items dropped, {counts.committed:,} committed stay."
    return _done(
        console, run, "cancelled", f"{words}\nTo go on: gen-producer load --run {run}", dropped=drop
    )


def run_requeue(
    run: str, settings: Settings, console: Console, *, reason: str | None, dry_run: bool
) -> int:
    """Queue dead letters again; a finished run is opened for it, its _SUCCESS taken away first.

    Raises:
        UsageError: there is no such class.
    """
    verdict = _verdict(reason)
    dead = _ask(run, settings, lambda runs, info: runs.failures_by_class(info.run))
    count = sum(n for name, n in dead.items() if verdict in (None, name))
    if dry_run or not count:
        words = f"{count:,} dead letters" + (f" of class {reason}" if reason else "")
        outcome = "dry-run" if dry_run else "none"
        return _done(console, run, outcome, f"Run {run} has {words}.", requeued=0, dead=count)

    async def requeue(runs: Runs, info: RunInfo) -> int:
        while True:
            if info.state == "closed":
                await _reopen(runs, info, open_store(settings))
            try:
                return await runs.requeue(info.run, verdict=verdict)
            except RunClosedError:  # a sink was quick to close it again, as nothing is queued yet
                found = await runs.get(info.run)
                if found is None or found.state == "cancelled":
                    raise
                info = found

    given = _ask(run, settings, requeue)
    return _done(console, run, "requeued", f"{given:,} items are queued again.", requeued=given)


async def _reopen(runs: Runs, info: RunInfo, store: ObjectStore) -> None:
    """Open a finished run; a sink that saw it closed may write _SUCCESS again just before that."""
    success = RunPaths(info.run).success
    await asyncio.to_thread(store.delete, success)
    await runs.reopen(info.run)
    await asyncio.to_thread(store.delete, success)


def run_failed(run: str, settings: Settings, console: Console, *, limit: int) -> int:
    """Show dead letters."""

    async def gather(runs: Runs, info: RunInfo) -> tuple[dict[str, int], list[Any]]:
        by_class = await runs.failures_by_class(info.run)
        return by_class, await runs.failures(info.run, limit=limit)

    by_class, found = _ask(run, settings, gather)
    total = sum(by_class.values())
    lines = [f"{run}  {total:,} dead" + (":" if total else "")]
    lines += [f"  {count:,} {name}" for name, count in by_class.items()]
    lines += [
        f"item {one.item}  {one.verdict}  {_when(one.at)}  {one.worker}\n    "
        + one.text.strip().replace("\n", "\n    ")
        for one in found
    ]
    if total > len(found):
        lines.append(f"... and {total - len(found):,} more: --limit {total}")
    if total:
        lines.append(f"Next: gen-producer requeue {run} --reason {next(iter(by_class))}")
    data = {
        "version": JSON_VERSION,
        "run": run,
        "dead_by_class": by_class,
        "failures": [asdict(one) for one in found],
    }
    console.result("\n".join(lines), data)
    return Exit.DONE


def _ask(run: str, settings: Settings, call: Callable[[Runs, RunInfo], Awaitable[T]]) -> T:
    """Call with the run as Redis knows it.

    Raises:
        InputError: it does not.
        QueueError: Redis cannot be used.
    """
    name: RunName = run_name(run)

    async def go() -> T:
        async with await connect(settings, name="control") as client:
            runs = Runs(client, settings.limits())
            info = await runs.get(name)
            if info is None:
                raise InputError(
                    f"Redis has no run {name}.",
                    why="It was never loaded there, or Redis lost it.",
                    fix=f"gen-producer status {name}",
                )
            return await call(runs, info)

    return asyncio.run(go())


def _verdict(reason: str | None) -> Verdict | None:
    if reason is None:
        return None
    try:
        return Verdict(reason)
    except ValueError as error:
        names = ", ".join(sorted(Verdict))
        raise UsageError(f"{reason!r} is no class of failure.", fix=f"Classes: {names}") from error


def _done(console: Console, run: str, outcome: str, words: str, **more: int) -> int:
    console.result(words, {"version": JSON_VERSION, "run": run, "outcome": outcome, **more})
    return Exit.DONE


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at else "-"
