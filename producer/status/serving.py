"""Which consumers may work on a run now, and which other run they take first. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.model import model_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from common.audit import RunCounts
    from common.ids import RunName
    from common.queue.prompts import QueueLimits
    from common.queue.workers import WorkerInfo
    from common.records import RunInfo

WORKING = frozenset({"ready", "draining"})  # states of an engine that answers
FATAL = "fatal"  # of one that was given up
_LEASABLE = frozenset({"loading", "open"})
_REASONS = ("refused", "unequal")  # gauges: runs that a consumer leaves alone


def number(worker: WorkerInfo, gauge: str) -> float:
    """Return a worker's figure, 0 where it has none."""
    try:
        return float(worker.gauges.get(gauge, "0"))
    except ValueError:
        return 0.0


def engine_of(worker: WorkerInfo) -> str:
    """Return the state of a worker's engine; a stock worker counts as ready."""
    return worker.gauges.get("engine", "ready").lower()


def heard(workers: Iterable[WorkerInfo]) -> list[WorkerInfo]:
    """Return the workers that are not silent."""
    return [worker for worker in workers if not worker.silent]


def to_come(workers: Iterable[WorkerInfo], info: RunInfo) -> int:
    """Return how many consumers of a run's model do not name it: they may not have looked yet.

    Consumers read every second which runs there are. One that was told to serve others alone, or
    whose tokenizer is another, never names it.
    """
    model = model_name(info.model)
    return sum(
        info.run not in one.queues
        and engine_of(one) != FATAL
        and model_name(one.gauges.get("model", "")) == model
        for one in heard(workers)
    )


def leaves_alone(worker: WorkerInfo, run: RunName, gauge: str) -> bool:
    """Tell whether a worker names the run among those that it leaves alone for a reason."""
    return run in worker.gauges.get(gauge, "").split(",")


def willing(workers: Iterable[WorkerInfo], run: RunName) -> list[WorkerInfo]:
    """Return the workers that are heard and do not leave the run alone."""
    return [
        one for one in heard(workers) if not any(leaves_alone(one, run, name) for name in _REASONS)
    ]


def working(workers: Iterable[WorkerInfo], run: RunName) -> list[WorkerInfo]:
    """Return the willing workers whose engine answers."""
    return [one for one in willing(workers, run) if engine_of(one) in WORKING]


def generate(workers: Iterable[WorkerInfo], run: RunName) -> bool:
    """Tell whether an engine makes tokens for requests in flight: liveness is tokens."""
    return any(
        number(one, "in_flight") > 0 and number(one, "tokens_per_second") > 0
        for one in working(workers, run)
    )


def present(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Leave out what was left by a consumer that gave up, where a newer one has its place.

    Such a consumer's record outlives it for some minutes, so that somebody sees how it ended.
    """
    newest: dict[tuple[str, str], str] = {}
    for one in workers:
        if one.gauges:
            newest[_place(one)] = max(one.birth, newest.get(_place(one), ""))
    return [
        one
        for one in workers
        if engine_of(one) != FATAL or one.birth >= newest.get(_place(one), "")
    ]


def may_wait(info: RunInfo, counts: RunCounts) -> bool:
    """Tell whether a run has work and none of it is handed out, so that it may wait its turn."""
    return info.state == "open" and not counts.leased and counts.queued + counts.waiting > 0


def earlier(info: RunInfo, runs: Iterable[RunInfo]) -> list[RunInfo]:
    """Return the runs that a consumer of ``info``'s model takes first, of all in their order."""
    found: list[RunInfo] = []
    for one in runs:
        if one.run == info.run:
            break
        if one.state in _LEASABLE and _one_engine(one, info):
            found.append(one)
    return found


def run_ahead(
    info: RunInfo,
    workers: Iterable[WorkerInfo],
    before: Iterable[tuple[RunInfo, RunCounts]],
    limits: QueueLimits,
) -> RunName | None:
    """Return the run that all working consumers of ``info`` take first; None: some are free for it.

    Leasing is strictly best-first: a run gets the places that the ones before it leave. ``before``
    are those of :func:`earlier` in their order.
    """
    free = working(workers, info.run)
    first: RunName | None = None
    for other, counts in before:
        if not (free and _hands_out(counts, limits)):
            continue
        serving = [one for one in willing(free, other.run) if other.run in one.queues]
        if serving:
            first = first or other.run
            free = [one for one in free if one not in serving]
    return None if free else first


def _place(worker: WorkerInfo) -> tuple[str, str]:
    return worker.gauges.get("host", worker.hostname), worker.gauges.get("gpu", "")


def _one_engine(one: RunInfo, other: RunInfo) -> bool:
    """Tell whether one engine can serve both runs."""
    prints = {one.model_fingerprint, other.model_fingerprint} - {""}
    return model_name(one.model) == model_name(other.model) and len(prints) < 2


def _hands_out(counts: RunCounts, limits: QueueLimits) -> bool:
    """Tell whether a lease would be given, as the queue's script decides it."""
    room = counts.generated < limits.stream_entries and counts.stream_bytes < limits.stream_bytes
    return counts.queued > 0 and room
