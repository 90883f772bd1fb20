"""Telling how a data set differs from the one that a run was loaded with, without quoting it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from common.codec import decompress, loads
from common.errors import ConflictError, StoreError
from common.objectstore import RunPaths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from common.objectstore import ObjectStore
    from common.records import RunManifest
    from producer.load.spool import Spool

# Options of `load` that make it another load; the run's name is what changes.
_FLAGS = {
    "model": "--model",
    "samples": "--samples",
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "top_k": "--top-k",
    "seed": "--seed",
    "max_attempts": "--max-attempts",
    "retry_max_tokens": "--retry-max-tokens",
    "shape": "--format",
    "text_field": "--field",
    "limit": "--limit",
    "split": "--split",
    "context": "--context",
    "canary_rows": "--canary-rows",
    "canary_faults": "--canary-faults",
    "canary_truncated": "--canary-truncated",
}
_SWITCHES = {"keep_answers": "--keep-answers", "reproducible": "--reproducible"}
_NEW_NAME = "Load it under a new name: "
_SHARD_LIMIT_BYTES = 16 * 2**30


def conflict(
    standing: RunManifest, kind: str, differences: list[str], *, source: str, again: str
) -> ConflictError:
    """Return the error that refuses other ``rows`` or ``settings`` under a run's name."""
    run = standing.run
    return ConflictError(
        f"Run {run} was loaded with other {kind}.",
        why="\n".join([*differences, f"Loaded {standing.created} from {standing.source}."]),
        fix=f"{_NEW_NAME}gen-producer load {source} --run {again}",
    )


def whole_hint(error: ConflictError, datasets: Sequence[str], options: Mapping[str, Any]) -> None:
    """Make the command that ``error`` names complete: with all flags of this load, quoted."""
    if error.fix.startswith(_NEW_NAME) and datasets:
        again = error.fix.rpartition(" ")[2]
        words = ["gen-producer", "load", *datasets, "--run", again, *_given(options)]
        error.fix = _NEW_NAME + shlex.join(words)


def _given(options: Mapping[str, Any]) -> list[str]:
    words = [
        word
        for name, flag in _FLAGS.items()
        if options.get(name) is not None
        for word in (flag, str(options[name]))
    ]
    words += [word for policy in options.get("policy", ()) for word in ("--policy", policy)]
    words += [flag for name, flag in _SWITCHES.items() if options.get(name)]
    if options.get("thinking") is not None:
        words.append("--thinking" if options["thinking"] else "--no-thinking")
    if options.get("priority"):
        words += ["--priority", str(options["priority"])]
    if options.get("on_error", "stop") != "stop":
        words += ["--on-error", options["on_error"]]
    return words


def rows_difference(store: ObjectStore, standing: RunManifest, spool: Spool) -> list[str]:
    """Return lines that tell how the rows differ: their number, and the first that is another."""
    lines = []
    if standing.rows != spool.rows:
        lines.append(f"Rows: were {standing.rows:,}, now {spool.rows:,}")
    try:
        first = _first_difference(store, standing, spool)
    except (StoreError, ValueError) as error:
        first = f"Rows: the first that differs cannot be told ({error})"
    return [*lines, first]


def _first_difference(store: ObjectStore, standing: RunManifest, spool: Spool) -> str:
    pairs = zip(standing.shards, spool.shards, strict=False)
    for number, (old, new) in enumerate(pairs):
        if old.sha256 != new.sha256:
            key = RunPaths(standing.run).prompts(standing.fingerprint, number)
            return _in_shard(_lines(store.get(key)), spool, number, new.first_row)
    return _beyond(min(standing.rows, spool.rows), spool)


def _in_shard(old: list[bytes], spool: Spool, number: int, first_row: int) -> str:
    new = _lines(spool.packed(number).read_bytes())
    for at, (before, after) in enumerate(zip(old, new, strict=False)):
        if before != after:
            row = first_row + at
            what = "; ".join(_fields(loads(before), loads(after))[:4]) or "the order of its keys"
            return f"Row {row + 1:,} is another ({spool.place(row)}): {what}"
    return _beyond(first_row + min(len(old), len(new)), spool)


def _beyond(common: int, spool: Spool) -> str:
    """Tell of data sets of which one begins with the other."""
    if spool.rows > common:
        return f"Rows: the first {common:,} are equal; new from {spool.place(common)} on"
    return f"Rows: the first {common:,} are equal; the others are missing now"


def _lines(packed: bytes) -> list[bytes]:
    return decompress(packed, limit_bytes=_SHARD_LIMIT_BYTES).split(b"\n")[:-1]


def _fields(before: Any, after: Any, path: str = "") -> list[str]:
    """Name the fields that differ, with lengths in place of texts."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            line
            for key in before | after
            for line in _fields(before.get(key), after.get(key), f"{path}.{key}".strip("."))
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line
            for at, (one, other) in enumerate(zip(before, after, strict=True))
            for line in _fields(one, other, f"{path}[{at}]")
        ]
    return [] if before == after else [f"{path[:60]} ({_kind(before)} -> {_kind(after)})"]


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"{len(value):,} characters"
    if isinstance(value, list):
        return f"{len(value):,} entries"
    if isinstance(value, dict):
        return "an object"
    return "absent" if value is None else str(value)
