"""Steering a run: pause, resume, cancel, dead letters. Each command may be given twice."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import click

from common.errors import Exit, RunClosedError, StoreError, UsageError
from common.ids import RunName, run_name
from common.objectstore import RunPaths, open_store
from common.queue.run_state import Runs
from common.records import Verdict
from common.redis_client import connect
from producer.manifest import find_manifest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from common.objectstore import ObjectStore
    from common.queue.failures import FailureInfo
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
        UsageError: nobody is there to be asked, and ``yes`` is not given.
    """
    if not (yes or dry_run or sys.stdin.isatty()):
        raise UsageError(
            f"Run {run} is not cancelled: nobody can be asked.",
            why="Standard input is no terminal.",
            fix=f"Add --yes: gen-producer cancel {run} --yes",
        )
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

    async def gather(runs: Runs, info: RunInfo) -> tuple[dict[str, int], list[FailureInfo]]:
        by_class = await runs.failures_by_class(info.run)
        return by_class, await runs.failures(info.run, limit=limit)

    by_class, found = _ask(run, settings, gather)
    samples = _samples(run, settings) if found else None
    rows = [one.item // samples + 1 if samples else None for one in found]
    total = sum(by_class.values())
    lines = [f"{run}  {total:,} dead" + (":" if total else "")]
    lines += [f"  {count:,} {name}" for name, count in by_class.items()]
    lines += [
        (f"row {row:,}  " if row else "")
        + f"item {one.item}  {one.verdict}  {_when(one.at)}  {one.worker}\n    "
        + one.text.strip().replace("\n", "\n    ")
        for one, row in zip(found, rows, strict=True)
    ]
    if total > len(found):
        lines.append(f"... and {total - len(found):,} more: --limit {total}")
    if total:
        lines.append(f"Next: {_remedy(run, next(iter(by_class)))}")
    data = {
        "version": JSON_VERSION,
        "run": run,
        "dead_by_class": by_class,
        "failures": [{**asdict(one), "row": row} for one, row in zip(found, rows, strict=True)],
    }
    console.result("\n".join(lines), data)
    return Exit.DONE


def _samples(run: str, settings: Settings) -> int | None:
    """Return how many items a row has, as run.json says, or None where it cannot be read."""
    try:
        manifest = find_manifest(open_store(settings), run_name(run))
    except (StoreError, UsageError):  # a help to the reader, and no reason to show nothing
        return None
    return manifest.settings.samples if manifest else None


def _remedy(run: str, verdict: str) -> str:
    """Return what helps against failures of a class."""
    if verdict == Verdict.TOO_LONG:  # another try alone ends in the same way
        return (
            f"gen-consumer with a larger --context, then: gen-producer requeue {run}"
            f" --reason {verdict}    (or accept them: gen-producer verify {run} --allow-failures)"
        )
    return f"gen-producer requeue {run} --reason {verdict}"


def _ask(run: str, settings: Settings, call: Callable[[Runs, RunInfo], Awaitable[T]]) -> T:
    """Call with the run as Redis knows it.

    Raises:
        UsageError: it does not.
        QueueError: Redis cannot be used.
    """
    name: RunName = run_name(run)

    async def go() -> T:
        async with await connect(settings, name="control") as client:
            runs = Runs(client, settings.limits())
            info = await runs.get(name)
            if info is None:
                raise UsageError(
                    f"Redis has no run {name}.",
                    why="It was never loaded there, or Redis lost it.",
                    fix="gen-producer status    lists the runs",
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
