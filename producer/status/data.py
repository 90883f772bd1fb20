"""How runs stand, gathered by reading alone: counts, workers, failures."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.audit import check_counts, flagged
from common.errors import EpochError
from common.no_such_run import not_in_redis, not_in_store
from common.objectstore import RunPaths
from common.prove import committed_items
from common.queue.run_state import Runs
from common.queue.server import ServerFacts, server_facts
from common.s3 import open_store
from producer.manifest import find_manifest
from producer.status.serving import (
    FATAL,
    earlier,
    engine_of,
    heard,
    may_wait,
    number,
    present,
    run_ahead,
    to_come,
)
from producer.status.store import StoreLook, finished_verdicts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis.asyncio

    from common.audit import RunCounts
    from common.ids import RunName
    from common.queue.workers import WorkerInfo
    from common.records import RunInfo, RunManifest
    from common.settings import Settings
    from producer.status.store import Child, Example

SPANS = (60.0, 420.0)  # seconds of which the rate is told; RQ's window holds 500
FEW = 20  # results; the rate of so few is that of the longer span
DEAD_LOOKED = 5000  # dead letters that are counted by class in one look


@dataclass(frozen=True, slots=True)
class Rate:
    """Completions and tokens a second; between ``low`` and ``high``, by chance, completions."""

    completions: float
    tokens: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run at one moment."""

    info: RunInfo
    counts: RunCounts
    workers: list[WorkerInfo] = field(default_factory=list)
    dead_by_class: dict[str, int] = field(default_factory=dict)
    suspended: bool = False
    success: bool | None = None  # _SUCCESS is there; None: storage was not asked, or not reached
    behind: RunName | None = None  # the run that its consumers take first, while it has nothing
    stream_limit: int = 0
    recent: Rate | None = None
    average: Rate | None = None
    examples: list[Example] = field(default_factory=list)  # of what a run is held for
    children: list[Child] = field(default_factory=list)
    verdicts: dict[str, int] = field(default_factory=dict)  # as storage has them, of a done run
    reproducible: bool = False  # it asks for equal tokens, as far as storage was asked
    others: int = 0  # workers that are up and serve other runs only
    to_come: int = 0  # of these, consumers of its model: they may not have looked yet
    last_part: int | None = None  # the number of the newest part in storage
    server: ServerFacts | None = None
    price: float | None = None  # of a GPU for an hour

    @property
    def dead_looked_at(self) -> int:
        """How many dead letters ``dead_by_class`` is of."""
        return sum(self.dead_by_class.values())

    @property
    def flagged(self) -> dict[str, int] | None:
        """Completions that the run keeps and that are not ok, by class; the commonest first.

        None where that is not known: Redis, or storage, lost some, and the run has not ended since.
        """
        kept = self.verdicts or self.counts.kept
        return None if kept is None else flagged(kept)

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


class Watcher:
    """Reads how runs stand, again and again. Writes nothing, in Redis or anywhere.

    A look costs Redis the same however large a run is, and object storage one request or two.
    """

    def __init__(
        self, client: redis.asyncio.Redis, settings: Settings, *, price: float | None = None
    ) -> None:
        self._client = client
        self._runs = Runs(client, settings.limits())
        self._settings = settings
        self._price = price
        self._store = StoreLook(self._runs, settings)
        self._dead: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {}
        self.known: list[RunName] = []  # the runs that Redis knew at the last look

    async def look(self, run: RunName | None) -> list[RunStatus]:
        """Return how ``run`` stands, or all runs; none if Redis does not know it."""
        known = await self._runs.list()
        self.known = [info.run for info in known]
        infos = [info for info in known if run in (None, info.run)]
        if not infos:
            return []
        common = _Common(
            known,
            {info.run: await self._runs.sample(info.run) for info in infos},
            present(await self._runs.workers()),
            await self._runs.suspended(),
            await server_facts(self._client),
            alone=len(infos) == 1,
        )
        return [await self._status(info, common) for info in infos]

    async def _status(self, info: RunInfo, common: _Common) -> RunStatus:
        counts = common.counts[info.run]
        serving = [worker for worker in common.workers if info.run in worker.queues]
        ended = await self._runs.ended_since(info.run, counts.at, SPANS)
        success = await self._store.success(info) if info.state == "closed" else None
        alone = common.alone
        return RunStatus(
            info=info,
            counts=counts,
            workers=serving,
            dead_by_class=await self._dead_by_class(info, counts) if counts.dead else {},
            suspended=common.suspended,
            success=success,
            behind=await self._behind(info, serving, common),
            verdicts=await self._store.verdicts(info) if success else {},
            stream_limit=self._settings.stream_entries,
            recent=recent_rate(counts, serving, *ended),
            average=average_rate(info, counts),
            examples=await self._store.examples(info, counts.canary.worst)
            if alone and counts.state == "held"
            else [],
            children=await self._store.children(info) if alone else [],
            reproducible=alone and await self._store.reproducible(info),
            others=sum(
                info.run not in one.queues and engine_of(one) != FATAL
                for one in heard(common.workers)
            ),
            to_come=to_come(common.workers, info),
            last_part=await self._store.last_part(info) if alone and counts.committed else None,
            server=common.server,
            price=self._price,
        )

    async def _dead_by_class(self, info: RunInfo, counts: RunCounts) -> dict[str, int]:
        """Return some dead letters by class, counted again only where their number has changed."""
        state = (counts.dead, sum(counts.failures.values()))
        known = self._dead.get(info.epoch)
        if known is None or known[0] != state:
            found = await self._runs.failures_by_class(info.run, limit=DEAD_LOOKED)
            known = self._dead[info.epoch] = (state, found)
        return known[1]

    async def _behind(
        self, info: RunInfo, serving: list[WorkerInfo], common: _Common
    ) -> RunName | None:
        """Return the run that a run waits for; asks Redis only of those that come before it."""
        counts = common.counts
        if not may_wait(info, counts[info.run]):
            return None
        before = earlier(info, common.known)
        for other in before:
            if other.run not in counts:
                with suppress(EpochError):  # it went between the two calls
                    counts[other.run] = await self._runs.sample(other.run)
        pairs = [(other, counts[other.run]) for other in before if other.run in counts]
        return run_ahead(info, serving, pairs, self._settings.limits())


@dataclass(frozen=True, slots=True)
class _Common:
    """What one look found for all runs alike."""

    known: list[RunInfo]  # all runs, in the order in which they are served
    counts: dict[RunName, RunCounts]  # of those that are shown, and that were asked for besides
    workers: list[WorkerInfo]
    suspended: bool
    server: ServerFacts
    alone: bool  # one run was asked for: storage is asked, too


def look_in_store(settings: Settings, run: RunName, known: Sequence[RunName]) -> StoredOnly:
    """Return what object storage alone knows of a run; Redis knows the ``known``.

    Raises:
        UsageError: nothing, or no store is named.
    """
    if not settings.store:
        raise not_in_redis(run, known)
    store = open_store(settings)
    manifest = find_manifest(store, run)
    if manifest is None:
        raise not_in_store(store, run, where=f"Redis or {store.url}")
    committed = int.from_bytes(committed_items(store, manifest), "big").bit_count()
    success = store.stat(RunPaths(run).success) is not None
    return StoredOnly(
        manifest, committed, success, finished_verdicts(store, run) if success else {}
    )


def _made(counts: RunCounts) -> int:
    """Return how many results were taken since the run was loaded into this Redis."""
    return sum(counts.verdicts.values())


def recent_rate(
    counts: RunCounts, workers: list[WorkerInfo], ended: Sequence[int], oldest: float | None
) -> Rate | None:
    """Return the rate of the last minute, or of seven where few results came in it.

    The range is that of both spans, each as wide as chance makes a number of so many events.
    Tokens are those that the workers show, else as many as a completion has on average. Where no
    worker is heard of, there is none.
    """
    here = heard(workers)
    if not here:
        return None
    shown = sum(number(worker, "tokens_per_second") for worker in here)
    made = _made(counts)
    mean = counts.completion_tokens / made if made else 0.0
    if oldest is None or oldest < 1.0 or not ended[-1]:
        return Rate(shown / mean, shown) if mean else None
    spans = [min(span, oldest) for span in SPANS]
    pairs = list(zip(ended, spans, strict=True))
    lows = [(n - math.sqrt(n)) / seconds for n, seconds in pairs if n > 1]
    highs = [(n + math.sqrt(n)) / seconds for n, seconds in pairs if n > 1]
    n, seconds = pairs[0] if ended[0] >= FEW else pairs[-1]
    rate = n / seconds
    return Rate(rate, shown or rate * mean, min(lows, default=None), max(highs, default=None))


def average_rate(info: RunInfo, counts: RunCounts) -> Rate | None:
    """Return the rate since the run was made, to its last result where it is settled."""
    end = counts.at - (counts.since_result or 0.0) if counts.settled else counts.at
    seconds = end - info.created
    made = _made(counts)
    if seconds <= 0 or not made:
        return None
    return Rate(made / seconds, counts.completion_tokens / seconds)
