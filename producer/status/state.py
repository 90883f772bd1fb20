"""What state a run is in, why, for how long still, and what to do about it. Pure."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.duration import duration
from common.model import SMALL_MODEL
from producer.status.rows import place_of
from producer.status.serving import (
    FATAL,
    WORKING,
    engine_of,
    generate,
    heard,
    leaves_alone,
    number,
    willing,
    working,
)
from producer.steer.acceptance import remedy

if TYPE_CHECKING:
    from common.audit import RunCounts
    from common.queue.workers import WorkerInfo
    from producer.status.data import RunStatus

STALL_SECONDS = 180.0
TOLD_SECONDS = 60.0  # a stall is given with its length from then on
_FULL_SHARE = 0.95  # of the stream's bound: consumers wait from there on
_FULL_REDIS = 0.98  # of maxmemory
_NO_CONSUMER = "no consumer serves this model"
_SILENT = "its consumers are silent"
_REFUSED = "its engines answer otherwise than its first one: see the consumers' logs"
_UNEQUAL = "it asks for equal tokens, and no consumer was started with --reproducible"
_SINK_BEHIND = "sink behind: consumers wait for it"
_NO_SINK = "results wait for a sink"
_UNTOUCHED = "nothing was handed out since it was loaded"
_ALL_FAILED = "all engines have failed"
_DOING = {  # what to say of an engine that does not work
    "starting": "starting",
    "warming": "starting",
    "backoff": "failed, starting again",
    "fatal": "failed for good",
    "stopped": "stopped",
}
_NAMED = 4  # GPUs that are named; more are counted


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU-hours: so far, and in all at best and at worst (None: nobody can say)."""

    hours: float
    total: tuple[float, float] | None


def label(status: RunStatus) -> str:
    """Return a run's state as the screen says it: word, how long, cause."""
    word, cause = state_of(status)
    if word == "held" and status.counts.canary.state == "held":
        word = "held by canary"
    seconds = stalled_seconds(status)
    if seconds is not None and seconds >= TOLD_SECONDS:
        word += f" {duration(seconds)}"
    return f"{word}: {cause}" if cause else word


def state_of(status: RunStatus) -> tuple[str, str]:
    """Return the state in one word, and its cause, or "" where it goes on as it should."""
    state, counts = status.info.state, status.counts
    loading = f"{counts.loaded:,} of {counts.total:,} queued; the same `load` again goes on"
    parts = [f"{counts.dead:,} dead-lettered"] if counts.dead else []
    parts += [f"{count:,} {name}" for name, count in (status.flagged or {}).items()]
    dead = ", ".join(parts)
    unseen = "storage was not asked, or does not answer"
    stall, starting = _stall(status), _starting(status)
    turn = "; ".join(filter(None, (f"behind run {status.behind}", _trouble(status))))
    in_flight = f"{counts.leased:,} items in flight are finished" if counts.leased else ""
    left = _left_behind(counts) if state == "cancelled" else 0
    rules = (  # the first that holds
        (state == "closed" and bool(status.success), "done", dead),
        (state == "closed" and status.success is None, "closed", unseen),
        (state == "closed", "finishing", "the sink writes the manifest and _SUCCESS"),
        (state == "loading", "loading", _full(status) or loading),
        (state == "held", "held", counts.hold_reason),
        (state == "paused", "paused", in_flight),
        (left > 0, "cancelled", f"{left:,} items are still open"),
        (state != "open", state, ""),
        (bool(status.problems), "damaged", "some items are nowhere"),
        (status.suspended, "suspended", ", ".join(filter(None, ("by `rq suspend`", in_flight)))),
        (counts.settled, "finishing", "the sink closes the run"),
        (bool(stall), "stalled", stall),
        (bool(starting), "starting", starting),
        (bool(status.behind), "waiting", turn),
        (_untouched(counts), "waiting", "; ".join(filter(None, (_UNTOUCHED, _trouble(status))))),
        (True, "generating", _trouble(status)),
    )
    return next((word, cause) for holds, word, cause in rules if holds)


def stalled_seconds(status: RunStatus) -> float | None:
    """Return how long nothing has moved; None where something does, or nobody can say.

    A run that had ended since its last move has work again, and nobody wrote down since when.
    """
    if state_of(status)[0] != "stalled" or _had_ended(status):
        return None
    counts, cause = status.counts, _stall(status)
    if cause.startswith(_NO_SINK):
        return _unstored_seconds(counts)
    since = counts.since_commit if cause == _SINK_BEHIND else counts.since_result
    return _first(since, counts.since_result, counts.since_lease, counts.at - status.info.created)


def doubtful(status: RunStatus) -> bool:
    """Tell whether a stall may be one of seconds: consumers that could end it have yet to look.

    So it is where ids have just come onto the queue again, after a requeue or a load.
    """
    word, cause = state_of(status)
    counts = status.counts
    if word != "stalled" or counts.leased or not counts.queued:
        return False
    if cause.startswith(_NO_CONSUMER):
        return status.to_come > 0
    return bool(working(status.workers, status.info.run)) and cause not in (
        _SINK_BEHIND,
        _full(status),
    )


def _had_ended(status: RunStatus) -> bool:
    """Tell whether the run was closed after all that is known to have moved in it."""
    counts = status.counts
    closed = int(counts.closing.rpartition("-")[2] or 0) / 1000
    moved = min(counts.since_result or math.inf, counts.since_lease or math.inf)
    return closed > 0 and counts.at - closed <= moved


def _first(*times: float | None) -> float:
    return next((one for one in times if one is not None), 0.0)


def _unstored_seconds(counts: RunCounts) -> float:
    """Return how long results were neither taken nor stored: the last may be seconds old."""
    known = (counts.since_commit, counts.since_result)
    return min((one for one in known if one is not None), default=0.0)


def _untouched(counts: RunCounts) -> bool:
    """Tell whether there is work of which nothing was ever handed out in this Redis."""
    never = counts.since_lease is None and counts.since_result is None
    return never and not counts.leased and counts.queued + counts.waiting > 0


def _left_behind(counts: RunCounts) -> int:
    """Return how many items a cancel that was killed left, or somebody put back by `rq requeue`.

    None of them is handed out; results that wait for a sink are no such items.
    """
    return counts.open - counts.generated


def _stall(status: RunStatus) -> str:
    """Return why nothing moves, or "" if it does, or will when the engines are up."""
    counts, run, here = status.counts, status.info.run, heard(status.workers)
    may = willing(here, run)
    engines = {engine_of(worker) for worker in may}
    to_answer = counts.queued + counts.waiting + counts.leased
    last = _first(counts.since_result, counts.since_lease, counts.at - status.info.created)
    full = bool(status.stream_limit) and counts.generated >= _FULL_SHARE * status.stream_limit
    unstored = not to_answer and _unstored_seconds(counts) > STALL_SECONDS
    busy = any(number(one, "in_flight") > 0 for one in may)
    goes_on = busy if _untouched(counts) else counts.leased > 0 and generate(may, run)
    silent = last > STALL_SECONDS and not (bool(status.behind) or goes_on)
    others = f"; {status.others:,} serve others" if status.others else ""
    rules = (
        (unstored, f"{_NO_SINK}; last commit {_ago(counts.since_commit)}"),
        (not to_answer, ""),
        (full, _SINK_BEHIND),
        (not status.workers, _NO_CONSUMER + others),
        (not here, _SILENT),
        (not may and any(leaves_alone(one, run, "unequal") for one in here), _UNEQUAL),
        (not may, _REFUSED),
        (engines == {FATAL}, _ALL_FAILED),
        (not engines & WORKING, ""),  # see `_starting`
        (silent and bool(_full(status)), _full(status)),
        (silent and _untouched(counts), f"{_UNTOUCHED}, and its consumers are idle"),
        (silent and not counts.leased, f"nothing is leased, {counts.waiting:,} retries wait"),
        (silent, f"no result, {counts.leased:,} items are leased"),
        (True, ""),
    )
    return next(cause for holds, cause in rules if holds)


def _starting(status: RunStatus) -> str:
    """Return what is awaited, and what else is wrong, where no engine works; "" where one does."""
    counts = status.counts
    waits = counts.queued + counts.waiting + counts.leased
    works = bool(working(status.workers, status.info.run))
    return "" if works or not waits else _trouble(status)


def _trouble(status: RunStatus) -> str:
    """Return what is not as it should be, although the run goes on."""
    silent = [worker for worker in status.workers if worker.silent]
    lost = [one for one in heard(status.workers) if one.gauges.get("gpu_up") == "0"]
    may = willing(status.workers, status.info.run)
    told = [
        _engines([one for one in may if engine_of(one) not in WORKING]),
        f"{_places(lost)} lost" if lost else "",
        f"{_places(silent)} silent" if silent else "",
        _full(status),
    ]
    return "; ".join(filter(None, told))


def _engines(workers: list[WorkerInfo]) -> str:
    """Return what engines do that do not work: "engine of gpu 3 starting"."""
    doing: dict[str, list[WorkerInfo]] = {}
    for worker in workers:
        doing.setdefault(_DOING.get(engine_of(worker), engine_of(worker)), []).append(worker)
    return "; ".join(
        f"{'engine' if len(some) == 1 else 'engines'} of {_places(some)} {what}"
        for what, some in doing.items()
    )


def _places(workers: list[WorkerInfo]) -> str:
    """Return where workers are: "gpu 3", "gpu 0, 1 and 2", "12 consumers"."""
    gpus = [one.gauges.get("gpu", "") for one in workers]
    hosts = {one.gauges.get("host", one.hostname) for one in workers}
    if len(workers) > _NAMED:
        return f"{len(workers):,} consumers"
    if all(gpus) and len(hosts) == 1:
        return f"gpu {_and(sorted(gpus, key=lambda one: (len(one), one)))}"
    return _and(sorted(place_of(one) for one in workers))


def _and(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _full(status: RunStatus) -> str:
    """Return that Redis has no room, or "" where it has."""
    server = status.server
    if server is None or not server.memory_limit_bytes:
        return ""
    used, limit = server.memory_bytes, server.memory_limit_bytes
    if used < _FULL_REDIS * limit:
        return ""
    return f"Redis full: {used / 1e9:,.2f} of {limit / 1e9:,.2f} GB; loads wait for room"


def eta(status: RunStatus) -> tuple[float, float] | None:
    """Return the seconds that are left, at best and at worst; None where nobody can say."""
    counts, recent = status.counts, status.recent
    left = counts.total - counts.generated - counts.committed - counts.dead
    if state_of(status)[0] != "generating" or left <= 0:
        return None
    if recent and recent.low and recent.high:
        return left / recent.high, left / recent.low
    rates = [rate.completions for rate in (recent, status.average) if rate and rate.completions > 0]
    return (left / max(rates), left / min(rates)) if rates else None


def cost(status: RunStatus) -> Cost | None:
    """Return the GPU-hours that the run has taken and will take; None before any are counted.

    Counted is the time in which a worker held items of the run. To come is, for each that holds
    some now, the time to the end.
    """
    hours = status.counts.gpu_seconds / 3600
    if not hours:
        return None
    left = eta(status)
    busy = sum(number(worker, "in_flight") > 0 for worker in heard(status.workers))
    if left is None or not busy:
        return Cost(hours, None)
    return Cost(hours, (hours + busy * left[0] / 3600, hours + busy * left[1] / 3600))


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
        "closed": "gen-producer doctor",
        "finishing": "gen-sink    (if none is running)",
    }
    if word == "cancelled" and cause:
        by_word[word] = f"gen-producer cancel {run}    (or load --run, to go on)"
    if word == "waiting" and status.behind:
        by_word[word] = (
            f"gen-producer status {status.behind} --watch    (or, to go first:"
            f" gen-producer priority {run} N)"
        )
    if cause.startswith((_NO_CONSUMER, _SILENT)):
        return _consumer(status.info.model, reproducible=status.reproducible)
    if cause == _UNEQUAL:
        return _consumer(status.info.model, reproducible=True)
    if cause and cause == _full(status):
        return "redis-cli CONFIG SET maxmemory 0    (or a larger limit than now)"
    if word == "stalled" and "sink" in cause:
        return "gen-sink    (if none is running)"
    looking = "failed" if status.counts.dead else "status"
    watch = "" if status.counts.dead else " --watch"
    return by_word.get(word, f"gen-producer {looking} {run}{watch}")


def _consumer(model: str, *, reproducible: bool) -> str:
    """Return a command that serves a model: a GPU's engine cannot, where it is for llama.cpp."""
    small = model == SMALL_MODEL or model.lower().endswith(".gguf")
    place = "--engine llamacpp" if small else "--gpu 0"
    equal = " --reproducible" if reproducible else ""
    return f"gen-consumer {place} --model {shlex.quote(model)}{equal}"


def _ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{duration(seconds)} ago"
