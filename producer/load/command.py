"""The words around a load: options in, what became of it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.errors import ConflictError, Exit
from common.records import Sampling
from producer.load.conflict import whole_hint
from producer.load.loader import Loaded, LoadRequest, load
from producer.load.policies import parse_policies
from producer.load.rows import ReadOptions
from producer.load.spool import FAULTS_SHOWN
from producer.manifest import Wishes
from producer.sources.records import Limits

if TYPE_CHECKING:
    from common.settings import Settings
    from producer.console import Console

JSON_VERSION = 1
_PRICE = (
    "Note: --reproducible costs about half of the tokens per second. Only consumers that were"
    " started with --reproducible serve the run."
)


def run_load(
    datasets: tuple[str, ...], options: dict[str, Any], settings: Settings, console: Console
) -> int:
    """Load, and tell what became of it.

    Raises:
        GenqError: as :func:`producer.load.loader.load`.
    """
    try:
        done = load(_request(datasets, options, settings), settings, console)
    except ConflictError as error:
        whole_hint(error, datasets, options)
        raise
    if done.skipped:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(done.kinds.items()))
        console.warn(f"{done.skipped:,} rows were passed over ({kinds}):")
        for fault in done.faults:
            console.warn(f"  {fault.place}: {fault.reason}")
        if done.skipped > FAULTS_SHOWN:
            console.warn(f"  ... and {done.skipped - FAULTS_SHOWN:,} more")
    if options["reproducible"]:
        console.say(_PRICE)
    for note, count in done.notes.items():
        console.say(f"Note: {count:,} {note}")
    console.result(_words(done), _data(done))
    return Exit.DONE


def _request(datasets: tuple[str, ...], options: dict[str, Any], settings: Settings) -> LoadRequest:
    return LoadRequest(
        datasets=datasets,
        run=options["run"],
        split=options["split"],
        context=options["context"],
        priority=options["priority"],
        dry_run=options["dry_run"],
        wishes=Wishes(
            model=options["model"],
            samples=options["samples"],
            seed=options["seed"],
            thinking=options["thinking"],
            max_attempts=options["max_attempts"],
            policies=parse_policies(options["policy"]),
            retry_max_tokens=options["retry_max_tokens"],
            keep_answers=options["keep_answers"],
            reproducible=options["reproducible"],
            canary_rows=options["canary_rows"],
            canary_faults=options["canary_faults"],
            canary_truncated=options["canary_truncated"],
            sampling=Sampling(
                max_tokens=options["max_tokens"],
                temperature=options["temperature"],
                top_p=options["top_p"],
                top_k=options["top_k"],
            ),
        ),
        read=ReadOptions(
            shape=options["shape"],
            text_field=options["text_field"],
            skip_faults=options["on_error"] == "skip",
            limit=options["limit"],
            keep_answers=bool(options["keep_answers"]),
            limits=Limits(row_bytes=settings.max_row_bytes),
        ),
    )


def _words(done: Loaded) -> str:
    size = f"{done.rows:,} rows"
    if done.items != done.rows:
        size += f", {done.items:,} completions to make"
    run, outcome = done.run, _outcome(done)
    words = {
        "loaded": f"Loaded run {run}: {size}, {done.new:,} ids queued.",
        "continued": f"Went on loading run {run}: {size}, {done.new:,} ids new.",
        "already": f"Run {run} is already loaded, 0 new: {size}.",
        "repaired": f"Run {run} was loaded; {done.new:,} ids were lost and are queued again.",
        "restored": f"Put run {run} back: {done.committed:,} of {done.items:,} are committed,"
        f" {done.new:,} ids queued.",
        "finished": f"Run {run} is finished: {size}. Nothing to do.",
        "dry-run": f"Run {run} can be loaded: {size}. Nothing was stored or queued.",
    }
    then = {
        "finished": f"gen-producer verify {run}",
        "dry-run": "the same command without --dry-run",
    }.get(outcome, f"gen-producer status {run} --watch")
    return f"{words[outcome]}\nNext: {then}"


def _outcome(done: Loaded) -> str:
    """Return how a load ended; where another one of the same rows was faster, all was there."""
    beaten = done.outcome in ("loaded", "continued", "restored") and not done.new + done.committed
    return "already" if beaten else done.outcome


def _data(done: Loaded) -> dict[str, Any]:
    return {
        "version": JSON_VERSION,
        "run": done.run,
        "outcome": _outcome(done),
        "state": done.state,
        "rows": done.rows,
        "items": done.items,
        "new": done.new,
        "committed": done.committed,
        "skipped": done.skipped,
        "skipped_by_class": dict(done.kinds),
        "faults": [
            {
                "file": fault.place.file,
                "line": fault.place.line,
                "class": fault.kind,
                "reason": fault.reason,
            }
            for fault in done.faults
        ],
        "notes": dict(done.notes),
    }
