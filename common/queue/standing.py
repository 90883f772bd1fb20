"""Why a run hands nothing out until a person says so, and the command that lets it go on. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Stop(NamedTuple):
    """What stops a run, in three parts as messages have them."""

    what: str
    why: str
    fix: str


def stop_of(run: str, state: str, *, suspended: bool, reason: str = "") -> Stop | None:
    """Return what a person has to end before anything of a run is handed out; None: nothing.

    ``reason`` is why it is held, where that is known.
    """
    if state == "held":
        return Stop(
            f"Run {run} is held: nothing of it is handed out.",
            reason or f"gen-producer status {run}    shows why.",
            f"gen-producer resume {run} --accept    (or: gen-producer cancel {run})",
        )
    if state == "paused":
        return Stop(
            f"Run {run} is paused: nothing of it is handed out.",
            "Somebody ran `gen-producer pause`.",
            f"gen-producer resume {run}",
        )
    if suspended and state in ("loading", "open"):
        return Stop(
            f"RQ is suspended: nothing of run {run} is handed out.",
            "Somebody ran `rq suspend`.",
            "rq resume",
        )
    return None
