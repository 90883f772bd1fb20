"""Runs, workers and Redis at one moment, as readings for Prometheus. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from common.records import Verdict
from common.telemetry.catalogue import EXPORTER
from common.telemetry.readings import Readings
from producer.status.data import RunStatus, average_rate, recent_rate
from producer.status.serving import (
    FATAL,
    earlier,
    engine_of,
    heard,
    may_wait,
    number,
    present,
    run_ahead,
)
from producer.status.state import eta, state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.audit import RunCounts
    from common.ids import RunName
    from common.queue.server import ServerFacts
    from common.queue.workers import WorkerInfo
    from common.records import RunInfo
    from common.settings import Settings

PLACES = ("queued", "waiting", "leased", "generated", "committed", "dead")
STATUSES = (
    "loading",
    "starting",
    "waiting",
    "generating",
    "stalled",
    "paused",
    "held",
    "suspended",
    "finishing",
    "damaged",
    "cancelled",
    "closed",
)
ENGINE_STATES = ("starting", "warming", "ready", "draining", "backoff", "fatal", "stopped")
_BUSY = {f"genq_worker_{name}": name for name in ("tokens_per_second", "engine_starts")}
_ITEMS = {f"genq_worker_{name}_items": name for name in ("in_flight", "window")}


@dataclass(frozen=True, slots=True)
class Fleet:
    """What one look at Redis found."""

    runs: list[tuple[RunInfo, RunCounts]] = field(default_factory=list)
    # Results of the last while, of runs that go on: see Runs.ended_since.
    ended: dict[RunName, tuple[Sequence[int], float | None]] = field(default_factory=dict)
    workers: list[WorkerInfo] = field(default_factory=list)
    suspended: bool = False
    server: ServerFacts | None = None


@dataclass(frozen=True, slots=True)
class Looks:
    """How the exporter itself is doing."""

    up: bool = False
    looks: int = 0
    failed: int = 0
    seconds: float | None = None
    last: float | None = None  # unix time


def readings(fleet: Fleet, looks: Looks, settings: Settings) -> Readings:
    """Return everything; after a look that failed, only that it did."""
    read = Readings(EXPORTER)
    read.set("genq_exporter_up", looks.up)
    read.set("genq_exporter_looks_total", looks.looks)
    read.set("genq_exporter_failed_looks_total", looks.failed)
    read.set("genq_exporter_look_seconds", looks.seconds)
    read.set("genq_exporter_last_look_timestamp_seconds", looks.last)
    if not looks.up:
        return read  # stale figures would look like a fleet at rest
    fleet = replace(fleet, workers=present(fleet.workers))
    read.set("genq_queue_suspended", fleet.suspended)
    for info, counts in fleet.runs:
        _run(read, info, counts, settings)
        _status(read, fleet, info, counts, settings)
    for worker in fleet.workers:
        if worker.gauges:
            _worker(read, worker)
    if fleet.server is not None:
        _server(read, fleet.server)
    return read


def _run(read: Readings, info: RunInfo, counts: RunCounts, settings: Settings) -> None:
    run = info.run
    for place in PLACES:
        read.set("genq_run_items", getattr(counts, place), run=run, place=place)
    for verdict in Verdict:
        name = str(verdict)
        read.set("genq_run_results_total", counts.verdicts.get(name, 0), run=run, verdict=name)
        if verdict is not Verdict.OK:  # which no failure can have
            failed = counts.failures.get(name, 0)
            read.set("genq_run_failed_tries_total", failed, run=run, **{"class": name})
    figures = {
        "size_items": counts.total,
        "loaded_items": counts.loaded,
        "priority": info.priority,
        "prompt_tokens_total": counts.prompt_tokens,
        "completion_tokens_total": counts.completion_tokens,
        "wasted_tokens_total": counts.wasted_tokens,
        "stream_bytes": counts.stream_bytes,
        "stream_limit_items": settings.stream_entries,
        "stream_limit_bytes": settings.stream_bytes,
        "since_lease_seconds": counts.since_lease,
        "since_result_seconds": counts.since_result,
        "since_commit_seconds": counts.since_commit,
        "overdue_retry_seconds": counts.oldest_wait,
    }
    for name, value in figures.items():
        read.set(f"genq_run_{name}", value, run=run)


def _status(
    read: Readings, fleet: Fleet, info: RunInfo, counts: RunCounts, settings: Settings
) -> None:
    serving = [worker for worker in fleet.workers if info.run in worker.queues]
    before = earlier(info, (one for one, _ in fleet.runs)) if may_wait(info, counts) else []
    pairs = [pair for pair in fleet.runs if pair[0] in before]
    ended = fleet.ended.get(info.run)
    status = RunStatus(
        info=info,
        counts=counts,
        workers=serving,
        suspended=fleet.suspended,
        stream_limit=settings.stream_entries,
        behind=run_ahead(info, serving, pairs, settings.limits()),
        recent=recent_rate(counts, serving, *ended) if ended else None,
        average=average_rate(info, counts),
    )
    # Whether _SUCCESS is there only storage knows, which is not asked here: such a run is `closed`.
    read.one_of("genq_run_status", state_of(status)[0], STATUSES, run=info.run)
    for bound, left in zip(("best", "worst"), eta(status) or (), strict=False):
        read.set("genq_run_remaining_seconds", left, run=info.run, bound=bound)
    serve = sum(engine_of(worker) != FATAL for worker in heard(serving))
    read.set("genq_run_workers", serve, run=info.run)
    read.set("genq_run_problems", len(status.problems), run=info.run)


def place_of(worker: WorkerInfo) -> str:
    """Return where a consumer runs: a name that a restart does not change."""
    host, gpu = worker.gauges.get("host", worker.hostname), worker.gauges.get("gpu", "")
    return f"{host.partition('.')[0]}-{f'gpu{gpu}' if gpu else 'cpu'}"


def _worker(read: Readings, worker: WorkerInfo) -> None:
    """Add a consumer's figures: several of one place, as without GPUs, are shown as one."""
    place = place_of(worker)
    read.set("genq_worker_info", 1, worker=place, model=worker.gauges.get("model", ""))
    engine = worker.gauges.get("engine", "").lower()
    read.one_of("genq_worker_engine_state", engine, ENGINE_STATES, worker=place)
    for name, gauge in {**_BUSY, **_ITEMS}.items():
        read.add(name, number(worker, gauge), worker=place)


def _server(read: Readings, server: ServerFacts) -> None:
    read.set("genq_redis_memory_used_bytes", server.memory_bytes)
    read.set("genq_redis_memory_limit_bytes", server.memory_limit_bytes)
    read.set("genq_redis_clients", server.clients)
    read.set("genq_redis_append_only_ok", server.append_only_ok)
