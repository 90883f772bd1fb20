"""Dead letters of a run: shown, and queued again. Each command may be given twice."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from common.errors import Exit, QueueAwayError, RunClosedError, StoreError, UsageError, VerifyError
from common.ids import run_name
from common.no_such_run import not_in_store
from common.objectstore import RunPaths
from common.queue.scripts import run_is_over
from common.records import Verdict
from common.s3 import open_store
from producer.manifest import find_manifest
from producer.steer.control import JSON_VERSION, ask, done, own_store
from producer.steer.lost import LostRun
from producer.steer.remedies import dead_remedy
from producer.trace.names import is_number, matches_of
from producer.trace.words import indented

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.errors import GenqError
    from common.ids import Item
    from common.objectstore import ObjectStore
    from common.queue.failures import FailureInfo
    from common.queue.run_state import Runs
    from common.records import RunInfo
    from common.settings import Settings
    from producer.console import Console


def run_requeue(
    run: str,
    settings: Settings,
    console: Console,
    *,
    reason: str | None,
    ids: Sequence[str],
    dry_run: bool,
) -> int:
    """Queue dead letters again; a finished run is opened for it, its _SUCCESS taken away first.

    Where Redis has lost a finished run, it is put back from storage.

    Raises:
        UsageError: there is no such class, no such item, or Redis lacks a run that goes on.
        VerifyError: Redis lacks it, and storage does not prove how it ended.
        ConflictError: it is kept in another store, and that is needed.
    """
    verdict = verdict_of(reason)
    items = _items(run, ids, settings)
    dead = ask(
        run,
        settings,
        lambda runs, info: _dead(runs, info, items, settings),
        absent=lambda missing: LostRun(run, settings, console, missing).by_class(items),
    )
    count = sum(n for name, n in dead.items() if verdict in (None, name))
    if dry_run:
        words = (
            f"{_letters(count, reason)} of run {run} would be queued again. Nothing was changed."
        )
        return done(console, run, "dry-run", words, requeued=0, dead=count, would_queue=count)
    if not count:
        words = _none(run, settings, reason, ids)
        return done(console, run, "none", words, requeued=0, dead=0)

    async def requeue(runs: Runs, info: RunInfo) -> int:
        while True:
            if info.state == "closed":
                await _reopen(runs, info, own_store(info, settings))
            try:
                return await runs.requeue(info.run, verdict=verdict, items=items)
            except RunClosedError:  # a sink was quick to close it again, as nothing is queued yet
                found = await runs.get(info.run)
                if found is None or found.state == "cancelled":
                    raise
                info = found

    given = ask(
        run,
        settings,
        requeue,
        absent=lambda missing: LostRun(run, settings, console, missing).requeue(verdict, items),
    )
    return done(console, run, "requeued", f"{given:,} items are queued again.", requeued=given)


def _none(run: str, settings: Settings, reason: str | None, ids: Sequence[str]) -> str:
    """Return what to say where nothing is dead of what was asked for."""
    words = f"Run {run} has {_letters(0, reason, ids)}."
    state, kept = ask(run, settings, _standing, absent=lambda _missing: ("", {}))
    if state == "loading":  # as a requeue leaves it that was killed while it put the run back
        return f"{words}\nIt is not loaded whole: gen-producer load --run {run}"
    if ids:
        return f"{words}\nWhere they are: gen-producer trace {run} {ids[0]}"
    if reason and kept is None:
        words += f"\nHow many completions are kept as {reason}: gen-producer verify {run}"
    elif reason and kept and (flagged := kept.get(reason)):
        words += (
            f"\n{flagged:,} completions are kept as {reason}. To do them again: gen-producer"
            f" requeue {run} --reason {reason} --max-tokens N"
        )
    return words


async def _standing(runs: Runs, info: RunInfo) -> tuple[str, dict[str, int] | None]:
    return info.state, (await runs.sample(info.run)).kept


async def _dead(
    runs: Runs, info: RunInfo, items: Sequence[Item], settings: Settings
) -> dict[str, int]:
    """Return how many items are dead, by class: of those named, or of all.

    Raises:
        ConflictError: to queue them the run's end is to be taken away, which is in another store.
        RunClosedError: it is cancelled.
    """
    if not items:
        found = await runs.failures_by_class(info.run)
    else:
        states = [await runs.trace(info.run, item) for item in items]
        found = dict(Counter(one.dead_class for one in states if one.place == "dead"))
    if found and info.state == "cancelled":
        raise run_is_over(info.run, info.state)
    if found and info.state == "closed":
        own_store(info, settings)
    return found


def _items(run: str, ids: Sequence[str], settings: Settings) -> list[Item]:
    """Return the items that are named.

    Raises:
        UsageError: one is not an item of the run.
        ConflictError: the run is kept in another store, where the names may mean other items.
    """
    if not ids:
        return []

    async def own(_runs: Runs, info: RunInfo) -> ObjectStore:
        return own_store(info, settings)

    store = ask(run, settings, own, absent=lambda _missing: open_store(settings))
    manifest = find_manifest(store, run_name(run))
    if manifest is None:
        raise not_in_store(store, run_name(run))
    for one in ids:
        if not is_number(manifest, one):
            raise UsageError(
                f"{one!r} is no item of run {run}.",
                why="--id takes an item's number, RUN-NUMBER or row:N.",
                fix=f"gen-producer trace {run} {shlex.quote(one)}    finds rows by their names",
            )
    found = [matches_of(store, manifest, one, lambda _read: None).found for one in ids]
    return sorted({match.item for matches in found for match in matches})


def _letters(count: int, reason: str | None, ids: Sequence[str] = ()) -> str:
    letters = "dead letter" if count == 1 else "dead letters"
    named = " among the items named" if ids else ""
    return f"{count:,} {letters}" + (f" of class {reason}" if reason else "") + named


async def _reopen(runs: Runs, info: RunInfo, store: ObjectStore) -> None:
    """Open a finished run; a sink that saw it closed may write _SUCCESS again just before that."""
    success = RunPaths(info.run).success
    await asyncio.to_thread(store.delete, success)
    await runs.reopen(info.run)
    await asyncio.to_thread(store.delete, success)


def run_failed(
    run: str, settings: Settings, console: Console, *, reason: str | None, limit: int
) -> int:
    """Show dead letters by reason, at most ``limit`` examples of each.

    Of a finished run that Redis has lost, or while it is away, failed.jsonl tells them.

    Raises:
        UsageError: there is no such class, or Redis lacks a run that goes on.
        QueueError: Redis is away, and storage has no end of the run.
    """
    verdict = verdict_of(reason)

    async def gather(runs: Runs, info: RunInfo) -> tuple[dict[str, int], list[FailureInfo], str]:
        by_class, some = await runs.dead_examples(info.run, each=limit, verdict=verdict)
        return by_class, await runs.reasons(info.run, some), info.store

    def from_storage(missing: GenqError) -> tuple[dict[str, int], list[FailureInfo], str]:
        lost = LostRun(run, settings, console, missing)
        return *lost.examples(verdict, each=limit), ""

    try:
        by_class, found, kept_in = ask(run, settings, gather, absent=from_storage)
    except QueueAwayError as error:
        by_class, found, kept_in = from_storage(error)
    samples = _samples(run, settings, kept_in) if found else None
    rows = {one.item: one.item // samples + 1 if samples else None for one in found}
    shown = {name: n for name, n in by_class.items() if verdict in (None, name)}
    total = sum(by_class.values())
    lines = [f"{run}  {total:,} dead" + (":" if total else "")]
    for name, count in shown.items():
        some = [one for one in found if one.verdict == name]
        lines.append(f"  {count:,} {name}")
        lines += [_letter(one, rows[one.item]) for one in some]
        if count > len(some):
            more = f"--reason {name} --limit {count}"
            lines.append(f"    ... and {count - len(some):,} more: {more}")
    if shown:
        lines.append(f"Next: {dead_remedy(run, next(iter(shown)))}")
    failures = [{**asdict(one), "row": rows[one.item]} for one in found]
    data = {
        "version": JSON_VERSION,
        "run": run,
        "dead_by_class": by_class,
        "groups": [
            {"reason": name, "count": n, "examples": [f for f in failures if f["verdict"] == name]}
            for name, n in shown.items()
        ],
        "failures": failures,
    }
    console.result("\n".join(lines), data)
    return Exit.DONE


def _letter(one: FailureInfo, row: int | None) -> str:
    place = f"row {row:,}  " if row else ""
    head = f"    {place}item {one.item}  {one.verdict}  {_when(one.at)}  {one.worker}"
    return f"{head}\n      {indented(one.text, 6)}"


def _samples(run: str, settings: Settings, kept_in: str) -> int | None:
    """Return how many items a row has, as run.json says, or None where it cannot be read.

    ``kept_in`` is the run's store, "" if that is not known: another's run.json is not its own.
    """
    try:
        store = open_store(settings)
        if kept_in not in ("", store.url):
            return None
        manifest = find_manifest(store, run_name(run))
    except (StoreError, UsageError, VerifyError):
        return None  # a help to the reader, and no reason to show nothing
    return manifest.settings.samples if manifest else None


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
