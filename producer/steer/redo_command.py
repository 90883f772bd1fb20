"""The words around a child run: `gen-producer requeue RUN --reason CLASS --max-tokens N`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from common.errors import GenqError, UsageError
from common.ids import run_name
from common.no_such_run import not_in_store
from common.queue.run_state import Runs
from common.records import Sampling, Verdict
from common.redis_client import connect
from common.s3 import open_store
from common.unfinished import is_cancelled
from producer.load.loader import LoadRequest, load
from producer.manifest import Wishes, find_manifest
from producer.steer.control import ask, done
from producer.steer.dead_letters import verdict_of
from producer.steer.lost import LostRun
from producer.steer.redo import look, make_child

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.records import RunInfo, RunManifest
    from common.settings import Settings
    from producer.console import Console
    from producer.steer.redo import Redo


def run_redo(
    run: str, settings: Settings, console: Console, options: Mapping[str, Any], *, dry_run: bool
) -> int:
    """Do committed items of a class again as a child run; given again, go on or say it is done.

    Raises:
        UsageError: there is no such run, or no class is named that could be redone.
        ConflictError: the child's name is another run's.
        StoreError, QueueError, VerifyError: the same command goes on.
    """
    reason = _reason(run, options["reason"])
    store = open_store(settings)
    parent = find_manifest(store, run_name(run))
    if parent is None:
        raise not_in_store(store, run_name(run))
    limits = Sampling(max_tokens=options["max_tokens"], temperature=options["temperature"])
    wishes = Wishes(thinking=options["thinking"], sampling=limits)
    _refuse_no_more_room(parent, reason, limits.max_tokens)
    redo = look(
        store,
        parent,
        reason,
        wishes,
        options["child"],
        cancelled=lambda runs: _cancelled(runs, settings, store),
    )
    if not redo.found and (dead := _dead(run, reason, settings, console)):
        words = _dead_words(redo, dead, limits.max_tokens)
        return done(console, run, "dry-run" if dry_run else "none", words, requeued=0, dead=dead)
    new = 0 if options["child"] and redo.standing else len(redo.items)
    if dry_run:
        words = f"{new:,} of {redo.found:,} {reason} items of run {run} would be done again"
        words += f" as run {redo.name}. Nothing was changed." if new else ". " + _nothing(redo)
        return done(console, run, "dry-run", words, child=redo.name, would_queue=new)
    back = sum(_load(child, settings, console) for child in redo.standing)
    if not new:
        outcome, words = _already(redo)
        if back:  # Redis had lost it, or it was cancelled
            words = f"{back:,} items of it are queued again.\n{words}"
        return done(console, run, outcome, words, requeued=back)
    with console.progress("Copying", new) as progress:
        child = make_child(store, redo, wishes, progress=progress)
    queued = _load(child, settings, console)
    words = (
        f"{queued:,} {reason} items of run {run} are queued again as run {child.run};"
        f" what {run} holds stays.\nNext: gen-producer status {child.run} --watch"
    )
    return done(console, run, "requeued", words, child=child.run, requeued=queued)


def _reason(run: str, given: str | None) -> Verdict:
    verdict = verdict_of(given)
    if verdict is Verdict.OK:
        raise UsageError(
            "Completions that are ok are not done again.",
            why="A child run redoes what is kept and flagged: another class than ok.",
            fix=f"gen-producer verify {run}    names the classes that the run holds",
        )
    if verdict is None:
        raise UsageError(
            "A child run needs the class of the items that it redoes.",
            why="Other settings do committed items again, of one class.",
            fix=f"For example: gen-producer requeue {run} --reason truncated --max-tokens 16384",
        )
    return verdict


def _refuse_no_more_room(parent: RunManifest, reason: Verdict, limit: int | None) -> None:
    """Refuse to redo what was cut off with no more room: it would be cut off again.

    Raises:
        UsageError: the new limit is no higher than the run's.
    """
    before = parent.settings.sampling.max_tokens
    if reason is Verdict.TRUNCATED and limit and before and limit <= before:
        raise UsageError(
            f"--max-tokens {limit} is no higher than the {before} of run {parent.run}.",
            why="Answers that were cut off would be cut off again.",
            fix=f"gen-producer requeue {parent.run} --reason {reason} --max-tokens {4 * before}",
        )


def _dead(run: str, reason: Verdict, settings: Settings, console: Console) -> int:
    """Return how many dead letters of a class the run has, 0 where nobody can say."""

    async def here(runs: Runs, info: RunInfo) -> dict[str, int]:
        return await runs.failures_by_class(info.run)

    def stored(missing: UsageError) -> dict[str, int]:
        return LostRun(run, settings, console, missing).by_class(())

    with suppress(GenqError):  # a hint beside the answer
        return ask(run, settings, here, absent=stored).get(reason, 0)
    return 0


def _dead_words(redo: Redo, dead: int, limit: int | None) -> str:
    """Return how dead letters are done with other settings: a child run takes completions only."""
    run, reason = redo.parent.run, redo.reason
    flags = f"--max-tokens {limit}" if limit else "--max-tokens N"
    return (
        f"Run {run} holds no {reason} completion: its {dead:,} {reason} items are dead letters,"
        " which a child run does not take."
        f"\nWith other settings: gen-producer failed {run} --reason {reason} --limit {dead} --json"
        "    names their rows (failures[].row);"
        f"\n  put these into a file: gen-producer load ROWS.jsonl --run {redo.name} {flags}"
        f"\nWith the same settings: gen-producer requeue {run} --reason {reason}"
    )


def _cancelled(names: list[RunName], settings: Settings, store: ObjectStore) -> set[RunName]:
    """Return which of these runs are cancelled, as Redis knows, or storage where that does not.

    Raises:
        QueueError, StoreError: the one or the other could not be asked.
    """

    async def states() -> dict[RunName, str]:
        async with await connect(settings, name="control") as client:
            runs = Runs(client, settings.limits())
            found = {name: await runs.get(name) for name in names}
        return {name: info.state if info else "" for name, info in found.items()}

    known = asyncio.run(states()) if names else {}
    return {
        name
        for name, state in known.items()
        if state == "cancelled" or (not state and is_cancelled(store, name))
    }


def _load(child: RunManifest, settings: Settings, console: Console) -> int:
    return load(LoadRequest(run=child.run), settings, console).new


def _already(redo: Redo) -> tuple[str, str]:
    """Return outcome and words where there is nothing to be made."""
    if not redo.standing:
        return "none", _nothing(redo)
    names = ", ".join(child.run for child in redo.standing)
    size = sum(child.items for child in redo.standing)
    words = f"Run {names} has them already: {size:,} {redo.reason} items of run {redo.parent.run}."
    if left := len(redo.items):
        words += f"\n{left:,} more were committed since: the same command without --as takes them."
    return "already", f"{words}\nNext: gen-producer status {redo.standing[0].run}"


def _nothing(redo: Redo) -> str:
    run, reason = redo.parent.run, redo.reason
    if not redo.found:
        return f"Run {run} holds no {reason} completion."
    child = (redo.others or redo.standing)[0].run
    return (
        f"All {redo.found:,} {reason} items of run {run} are with a child run. What is {reason}"
        f" there is redone from it: gen-producer requeue {child} --reason {reason} ..."
        f"\nIf its settings are wrong: gen-producer cancel {child} --yes, then this command again."
    )
