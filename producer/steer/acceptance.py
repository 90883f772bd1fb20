"""What a person has accepted of a run that was held: kept beside it, so that it outlives Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.codec import dumps, loads
from common.errors import ConflictError
from common.objectstore import ObjectMissingError, RunPaths
from common.queue.canary import REASONS
from common.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection

    from common.audit import RunCounts
    from common.ids import RunName
    from common.objectstore import ObjectStore

# What to change about a run whose first rows come to a class; the rest is for `failed` to tell.
_REMEDIES = {
    Verdict.TRUNCATED: "to a higher --max-tokens",
    Verdict.THOUGHT_ONLY: "to a higher --max-tokens, or to --no-thinking",
    Verdict.EMPTY: "the model or its chat template",
    Verdict.LOOPING: "--temperature",
    Verdict.TOO_LONG: "to consumers with a larger --context",
    Verdict.INPUT_TRUNCATED: "to consumers with a larger --context",
    Verdict.BAD_ROW: "the rows",
    Verdict.CONTENT_ERROR: "the rows",
}


def read_accepted(store: ObjectStore, run: RunName) -> tuple[str, ...]:
    """Return what a run is not held for any more.

    Raises:
        StoreError: the store could not be asked.
    """
    try:
        known = loads(store.get(RunPaths(run).accepted))
        return tuple(reason for reason in REASONS if reason in known["accepted"])
    except (ObjectMissingError, ValueError, KeyError, TypeError):
        return ()


def keep_accepted(store: ObjectStore, run: RunName, reasons: Collection[str]) -> None:
    """Remember what a run is not to be held for; raises StoreError."""
    data = dumps({"accepted": sorted(reasons)})
    store.put(RunPaths(run).accepted, data, content_type="application/json")


def remedy(verdict: str) -> str:
    """Return what to change where the first rows come to a class."""
    return _REMEDIES.get(Verdict(verdict), "the settings") if verdict else "the settings"


def held_error(run: str, counts: RunCounts) -> ConflictError:
    """Return the error that refuses to go on with a held run as if nothing were the matter."""
    return ConflictError(
        f"Run {run} is held, and goes on only if that is accepted.",
        why=f"{counts.hold_reason or 'It was held by a person.'}",
        fix=f"gen-producer resume {run} --accept    goes on, and is not held for this again\n"
        f"Or change {remedy(counts.canary.worst)}: gen-producer cancel {run} --yes, and load it"
        " under another name.",
    )
