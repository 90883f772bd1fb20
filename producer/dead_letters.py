"""Dead letters of a run: shown, and queued again. Each command may be given twice."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from common.errors import Exit, RunClosedError, StoreError, UsageError
from common.ids import run_name
from common.objectstore import RunPaths, open_store
from common.records import Verdict
from producer.control import JSON_VERSION, ask, done
from producer.manifest import find_manifest

if TYPE_CHECKING:
    from common.objectstore import ObjectStore
    from common.queue.failures import FailureInfo
    from common.queue.run_state import Runs
    from common.records import RunInfo
    from common.settings import Settings
    from producer.console import Console


def run_requeue(
    run: str, settings: Settings, console: Console, *, reason: str | None, dry_run: bool
) -> int:
    """Queue dead letters again; a finished run is opened for it, its _SUCCESS taken away first.

    Raises:
        UsageError: there is no such class.
    """
    verdict = verdict_of(reason)
    dead = ask(run, settings, lambda runs, info: runs.failures_by_class(info.run))
    count = sum(n for name, n in dead.items() if verdict in (None, name))
    if dry_run:
        words = (
            f"{_letters(count, reason)} of run {run} would be queued again. Nothing was changed."
        )
        return done(console, run, "dry-run", words, requeued=0, dead=count, would_queue=count)
    if not count:
        words = f"Run {run} has {_letters(0, reason)}."
        kept = ask(run, settings, lambda runs, info: runs.sample(info.run)).verdicts
        if reason and (flagged := kept.get(reason)):
            words += (
                f"\n{flagged:,} completions are kept as {reason}. To do them again: gen-producer"
                f" requeue {run} --reason {reason} --max-tokens N"
            )
        return done(console, run, "none", words, requeued=0, dead=0)

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

    given = ask(run, settings, requeue)
    return done(console, run, "requeued", f"{given:,} items are queued again.", requeued=given)


def _letters(count: int, reason: str | None) -> str:
    letters = "dead letter" if count == 1 else "dead letters"
    return f"{count:,} {letters}" + (f" of class {reason}" if reason else "")


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

    by_class, found = ask(run, settings, gather)
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


def verdict_of(reason: str | None) -> Verdict | None:
    """Return the class that a command line names; raises UsageError if there is no such class."""
    if reason is None:
        return None
    try:
        return Verdict(reason)
    except ValueError as error:
        names = ", ".join(sorted(Verdict))
        raise UsageError(f"{reason!r} is no class of failure.", fix=f"Classes: {names}") from error


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at else "-"
