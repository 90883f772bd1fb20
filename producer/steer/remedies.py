"""The command that helps against dead letters: the same one wherever they are shown."""

from __future__ import annotations

from common.records import Verdict

_LARGER = (Verdict.TOO_LONG, Verdict.INPUT_TRUNCATED)  # another try alone ends in the same way


def dead_remedy(run: str, verdict: str, *, item: int | None = None) -> str:
    """Return what helps against the dead letters of a class, or against a single one of it."""
    chosen = f"--reason {verdict}" if item is None else f"--id {item}"
    again = f"gen-producer requeue {run} {chosen}"
    if verdict not in _LARGER:
        return again
    accept = f"    (or accept them: gen-producer verify {run} --allow-failures)"
    return f"gen-consumer with a larger --context, then: {again}{accept if item is None else ''}"
