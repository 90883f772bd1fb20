"""What state a run is in, why, for how long still, and what to do about it. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from common.model import SMALL_MODEL
from producer.acceptance import remedy

if TYPE_CHECKING:
    from producer.status_data import RunStatus

STALL_SECONDS = 180.0
_FULL_SHARE = 0.95  # of the stream's bound: consumers wait from there on
_NO_CONSUMER = "no consumer serves it"
_SILENT = "its consumers are silent"
_REFUSED = "its engines answer otherwise than its first one: see the consumers' logs"
_STARTING = "its engines are loading"
_WORKING = {"ready", "draining"}


def state_of(status: RunStatus) -> tuple[str, str]:
    """Return the state in one word, and its cause, or "" where it goes on as it should."""
    state, counts = status.info.state, status.counts
    loading = f"{counts.loaded:,} of {counts.total:,} queued; the same `load` again goes on"
    parts = [f"{counts.dead:,} dead-lettered"] if counts.dead else []
    parts += [f"{count:,} {name}" for name, count in status.flagged.items()]
    dead = ", ".join(parts)
    stall = _stall(status)
    rules = (  # the first that holds
        (state == "closed" and status.success, "done", dead),
        (state == "closed", "finishing", "the sink writes the manifest and _SUCCESS"),
        (state == "loading", "loading", loading),
        (state == "held", "held", counts.hold_reason),
        (state != "open", state, ""),
        (bool(status.problems), "damaged", "some items are nowhere"),
        (status.suspended, "suspended", "by `rq suspend`"),
        (counts.settled, "finishing", "the sink closes the run"),
        (stall == _STARTING, "starting", stall),
        (bool(stall), "stalled", stall),
        (True, "generating", ""),
    )
    return next((word, cause) for holds, word, cause in rules if holds)


def _stall(status: RunStatus) -> str:
    """Return why nothing moves, or "" if it does."""
    counts = status.counts
    heard = [worker for worker in status.workers if not worker.silent]
    willing = [
        one for one in heard if status.info.run not in one.gauges.get("refused", "").split(",")
    ]
    engines = {worker.gauges.get("engine", "ready").lower() for worker in willing}
    to_answer = counts.queued + counts.waiting + counts.leased
    last = counts.since_result if counts.since_result is not None else counts.since_lease
    full = bool(status.stream_limit) and counts.generated >= _FULL_SHARE * status.stream_limit
    commit = counts.since_commit if counts.since_commit is not None else counts.since_result
    unstored = not to_answer and (commit or 0.0) > STALL_SECONDS
    silent = last is not None and last > STALL_SECONDS
    rules = (
        (unstored, f"results wait for a sink; last commit {_ago(counts.since_commit)}"),
        (not to_answer, ""),
        (full, "the sink is behind: consumers wait for it"),
        (not status.workers, _NO_CONSUMER),
        (not heard, _SILENT),
        (not willing, _REFUSED),
        (engines == {"fatal"}, "all engines have failed"),
        (not engines & _WORKING, _STARTING),
        (silent and not counts.leased, f"{counts.waiting:,} retries wait, nothing is leased"),
        (silent, f"last result {_ago(last)}"),
        (True, ""),
    )
    return next(cause for holds, cause in rules if holds)


def eta(status: RunStatus) -> tuple[float, float] | None:
    """Return the seconds that are left, at best and at worst; None where nobody can say."""
    counts = status.counts
    left = counts.total - counts.generated - counts.committed - counts.dead
    known = [rate.completions for rate in (status.recent, status.average) if rate]
    rates = [rate for rate in known if rate > 0]
    if state_of(status)[0] != "generating" or not rates or left <= 0:
        return None
    return left / max(rates), left / min(rates)


def next_command(status: RunStatus) -> str:
    """Return the command that is most useful now."""
    run, (word, cause) = status.info.run, state_of(status)
    by_word = {
        "damaged": f"gen-producer load --run {run}",
        "loading": f"gen-producer load --run {run}",
        "cancelled": f"gen-producer load --run {run}",
        "suspended": "rq resume",
        "held": f"gen-producer resume {run} --accept    (or cancel it, change"
        f" {remedy(status.counts.canary.worst)}, and load anew)",
        "paused": f"gen-producer resume {run}",
        "done": f"gen-producer verify {run}",
        "finishing": "gen-sink    (if none is running)",
    }
    if cause in (_NO_CONSUMER, _SILENT):
        return _consumer(status.info.model)
    if word == "stalled" and "sink" in cause:
        return "gen-sink    (if none is running)"
    looking = "failed" if status.counts.dead else "status"
    watch = "" if status.counts.dead else " --watch"
    return by_word.get(word, f"gen-producer {looking} {run}{watch}")


def _consumer(model: str) -> str:
    """Return a command that serves a model: a GPU's engine cannot, where it is for llama.cpp."""
    small = model == SMALL_MODEL or model.lower().endswith(".gguf")
    place = "--engine llamacpp" if small else "--gpu 0"
    return f"gen-consumer {place} --model {shlex.quote(model)}"


def _ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{duration(seconds)} ago"


def duration(seconds: float) -> str:
    """Return a time in its two largest units."""
    left = round(seconds)
    parts: list[str] = []
    for name, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (name == "s" and not parts):
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])
