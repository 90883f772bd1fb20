"""How runs stand, gathered by reading alone: counts, workers, failures."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.audit import check_counts, flagged
from common.errors import InputError
from common.objectstore import RunPaths, open_store
from common.prove import committed_items
from common.queue.run_state import Runs
from producer.manifest import find_manifest
from producer.status_store import StoreLook, finished_verdicts

if TYPE_CHECKING:
    import redis.asyncio

    from common.audit import RunCounts
    from common.ids import RunName
    from common.queue.workers import WorkerInfo
    from common.records import RunInfo, RunManifest
    from common.settings import Settings
    from producer.status_store import Child, Example

RECENT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Completions and tokens a second."""

    completions: float
    tokens: float


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run at one moment."""

    info: RunInfo
    counts: RunCounts
    workers: list[WorkerInfo] = field(default_factory=list)
    dead_by_class: dict[str, int] = field(default_factory=dict)
    suspended: bool = False
    success: bool = False  # _SUCCESS is there
    stream_limit: int = 0
    recent: Rate | None = None
    average: Rate | None = None
    examples: list[Example] = field(default_factory=list)  # of what a run is held for
    children: list[Child] = field(default_factory=list)
    verdicts: dict[str, int] = field(default_factory=dict)  # as storage has them, of a done run

    @property
    def flagged(self) -> dict[str, int]:
        """Completions that the run keeps and that are not ok, by class; the commonest first."""
        return flagged(self.verdicts or self.counts.verdicts)

    @property
    def problems(self) -> list[str]:
        """What does not add up."""
        return check_counts(self.counts)


@dataclass(frozen=True, slots=True)
class StoredOnly:
    """A run that Redis does not know and object storage does."""

    manifest: RunManifest
    committed: int
    success: bool
    verdicts: dict[str, int] = field(default_factory=dict)  # of a finished run


class Recent:
    """The samples of the last minute of one run, while somebody watches it."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def rate(self, counts: RunCounts) -> Rate | None:
        """Take a sample; return the rate over the last minute, None before there are two."""
        made = counts.generated + counts.committed + counts.dead
        sample = (counts.at, made, counts.completion_tokens)
        samples = self._samples
        if samples and (made < samples[-1][1] or sample[2] < samples[-1][2]):
            samples.clear()  # requeued, or loaded anew
        samples.append(sample)
        while len(samples) > 2 and samples[1][0] <= counts.at - RECENT_SECONDS:
            samples.popleft()
        seconds = counts.at - samples[0][0]
        if seconds < 1.0:
            return None
        return Rate((made - samples[0][1]) / seconds, (sample[2] - samples[0][2]) / seconds)


class Watcher:
    """Reads how runs stand, again and again. Writes nothing, in Redis or anywhere."""

    def __init__(self, client: redis.asyncio.Redis, settings: Settings) -> None:
        self._runs = Runs(client, settings.limits())
        self._settings = settings
        self._recent: dict[str, Recent] = {}
        self._store = StoreLook(self._runs, settings)

    async def look(self, run: RunName | None) -> list[RunStatus]:
        """Return how ``run`` stands, or all runs; none if Redis does not know it."""
        if run is None:
            infos = await self._runs.list()
        else:
            info = await self._runs.get(run)
            infos = [info] if info else []
        workers = await self._runs.workers() if infos else []
        suspended = bool(infos) and await self._runs.suspended()
        return [
            await self._status(info, workers, suspended=suspended, alone=run is not None)
            for info in infos
        ]

    async def _status(
        self, info: RunInfo, workers: list[WorkerInfo], *, suspended: bool, alone: bool
    ) -> RunStatus:
        counts = await self._runs.sample(info.run)
        serving = [worker for worker in workers if info.run in worker.queues]
        recent = self._recent.setdefault(f"{info.run} {info.epoch}", Recent()).rate(counts)
        success = info.state == "closed" and self._has_success(info.run)
        return RunStatus(
            info=info,
            counts=counts,
            workers=serving,
            dead_by_class=await self._runs.failures_by_class(info.run) if counts.dead else {},
            suspended=suspended,
            success=success,
            verdicts=await self._store.verdicts(info) if success else {},
            stream_limit=self._settings.stream_entries,
            recent=recent or _gauged(counts, serving),
            average=_average(info, counts),
            examples=await self._store.examples(info, counts.canary.worst)
            if alone and counts.state == "held"
            else [],
            children=await self._store.children(info) if alone else [],
        )

    def _has_success(self, run: RunName) -> bool:
        if not self._settings.store:
            return False
        return open_store(self._settings).stat(RunPaths(run).success) is not None


def look_in_store(settings: Settings, run: RunName) -> StoredOnly:
    """Return what object storage alone knows of a run.

    Raises:
        InputError: nothing.
    """
    store = open_store(settings)
    manifest = find_manifest(store, run)
    if manifest is None:
        raise InputError(
            f"There is no run {run}.",
            why=f"Neither Redis nor {store.url} has one.",
            fix=f"gen-producer load DATASET --run {run}    (or: gen-producer status)",
        )
    committed = int.from_bytes(committed_items(store, manifest), "big").bit_count()
    success = store.stat(RunPaths(run).success) is not None
    return StoredOnly(
        manifest, committed, success, finished_verdicts(store, run) if success else {}
    )


def _made(counts: RunCounts) -> int:
    """Return how many results were taken since the run was loaded into this Redis."""
    return sum(counts.verdicts.values())


def _gauged(counts: RunCounts, workers: list[WorkerInfo]) -> Rate | None:
    """Return the rate as the workers show it: their tokens, over the run's mean length."""
    heard = [worker for worker in workers if not worker.silent]
    tokens = sum(number(worker, "tokens_per_second") for worker in heard)
    made = _made(counts)
    if not heard or not made or not counts.completion_tokens:
        return None
    return Rate(tokens * made / counts.completion_tokens, tokens)


def _average(info: RunInfo, counts: RunCounts) -> Rate | None:
    end = counts.at - (counts.since_result or 0.0) if counts.settled else counts.at
    seconds = end - info.created
    made = _made(counts)
    if seconds <= 0 or not made:
        return None
    return Rate(made / seconds, counts.completion_tokens / seconds)


def number(worker: WorkerInfo, gauge: str) -> float:
    """Return a worker's figure, 0 where it has none."""
    try:
        return float(worker.gauges.get(gauge, "0"))
    except ValueError:
        return 0.0
