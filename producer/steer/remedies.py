"""The command that helps against dead letters: the same one wherever they are shown."""

from __future__ import annotations

from common.records import Verdict

_LARGER = (Verdict.TOO_LONG, Verdict.INPUT_TRUNCATED)  # another try alone ends in the same way

_MORE_ROOM = (Verdict.TRUNCATED, Verdict.THOUGHT_ONLY)  # a higher --max-tokens may help


def dead_remedy(run: str, verdict: str, *, item: int | None = None) -> str:
    """Return what helps against the dead letters of a class, or against a single one of it."""
    chosen = f"--reason {verdict}" if item is None else f"--id {item}"
    again = f"gen-producer requeue {run} {chosen}"
    if verdict in _MORE_ROOM:
        other = "for a higher one load these rows under another name"
        return f"{again}    (with the same limit; {other})"
    if verdict not in _LARGER:
        return again
    accept = f"    (or accept them: gen-producer verify {run} --allow-failures)"
    return f"gen-consumer with a larger --context, then: {again}{accept if item is None else ''}"
