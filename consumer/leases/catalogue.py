"""Which runs this consumer serves, best first, and how to reach each one's queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from common.errors import StoreAwayError, StoreError, VerifyError
from common.model import model_name
from common.no_such_run import not_in_redis
from common.objectstore import RunPaths
from common.parts.owner import refuse_other_name
from common.queue.prompts import PromptQueue
from common.queue.run_list import OVER, RunList
from common.queue.standing import stop_of
from consumer.leases.rundata import read_manifest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    import redis.asyncio

    from common.ids import Epoch, RunName
    from common.objectstore import ObjectStore
    from common.queue.prompts import QueueLimits
    from common.queue.run_state import Runs
    from common.records import RunInfo, RunManifest
    from consumer.engine.api import EngineFacts

LEASABLE = frozenset({"loading", "open"})
NO_RUN = "no run to serve"
UNREADABLE = "its run cannot be read from object storage"
UNEQUAL = "its run asks for equal tokens: start the consumer with --reproducible"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A run that may be leased from now: what it is, and its queue under its present epoch."""

    info: RunInfo
    manifest: RunManifest
    queue: PromptQueue


def serves(info: RunInfo, facts: EngineFacts, only: Collection[RunName] = ()) -> bool:
    """Return whether an engine may answer a run's prompts."""
    return not (only and info.run not in only) and not mismatch(info, facts)


def mismatch(info: RunInfo, facts: EngineFacts) -> str:
    """Return why an engine's model is not the run's; empty if it is.

    The model's name (its last path component) must be the same, and so must the fingerprints of
    tokenizer and template where both are known.
    """
    if model_name(info.model) != model_name(facts.model):
        return f"it asks for {model_name(info.model)}, and this engine serves {facts.model}"
    both = info.model_fingerprint and facts.model_fingerprint
    if both and info.model_fingerprint != facts.model_fingerprint:
        return "its tokenizer or chat template is another than this engine's"
    return ""


async def _no_objection(_info: RunInfo) -> str:
    return ""


class Catalogue:
    """The runs in Redis, as of the last :meth:`refresh`.

    ``model`` is what runs are told by before an engine is up. ``objection`` says why this engine
    must not serve a run that is its model's all the same; empty when it may.
    """

    def __init__(
        self,
        redis: redis.asyncio.Redis,
        runs: Runs,
        store: ObjectStore,
        limits: QueueLimits,
        *,
        only: Collection[RunName] = (),
        model: str = "",
        objection: Callable[[RunInfo], Awaitable[str]] = _no_objection,  # may raise StoreError
    ) -> None:
        self._redis = redis
        self._runs = runs
        self._list = RunList(redis)
        self._store = store
        self._limits = limits
        self._only = frozenset(only)
        self._model = model
        self._objection = objection
        self._manifests: dict[tuple[RunName, str], RunManifest] = {}
        self._queues: dict[tuple[RunName, Epoch], PromptQueue] = {}
        self._said: set[tuple[RunName, str]] = set()
        self._stopped: set[tuple[RunName, str]] = set()  # of these, what may be said again
        self.infos: list[RunInfo] = []
        self.active: list[ActiveRun] = []
        self.refused: set[RunName] = set()  # this engine answers otherwise than their first one
        self.unequal: set[RunName] = set()  # they ask for equal tokens, which this engine has not
        self.unreadable: dict[RunName, StoreError] = {}  # what they are is not known, and why
        self.suspended = False

    async def look(self) -> None:
        """Read which runs there are, without an engine to serve them.

        Raises:
            QueueError: Redis did not answer; what was known stays.
        """
        self.suspended = await self._runs.suspended()
        self.infos = await self._list.look()
        live = {(info.run, info.epoch) for info in self.infos}
        self._queues = {key: queue for key, queue in self._queues.items() if key in live}

    async def refresh(self, facts: EngineFacts) -> None:
        """Read the runs again: best first, as far as ``facts``'s engine may serve them.

        Raises:
            QueueError: Redis did not answer; what was known stays.
        """
        await self.look()
        self._say_missing()
        self._say_mismatches(facts)
        self._say_stops(facts)
        served = self.served(facts)
        active = [await self._activate(info, facts) for info in served]
        self.active = [run for run in active if run is not None]
        self._forget_all_but({info.run for info in served})

    def _forget_all_but(self, served: Collection[RunName]) -> None:
        """Nobody waits for a run that is over, whatever kept this engine from it."""
        self.unequal.intersection_update(served)
        self.refused.intersection_update(served)
        for run in self.unreadable.keys() - served:
            del self.unreadable[run]

    def served(self, facts: EngineFacts) -> list[RunInfo]:
        """Return the known runs that may be leased from and that the engine may serve."""
        return [i for i in self.infos if i.state in LEASABLE and serves(i, facts, self._only)]

    @property
    def closed(self) -> str:
        """Why nothing can be leased now; empty when something may be."""
        if self.suspended:
            return "suspended"
        if self.active:
            return ""
        if self.unreadable:
            return UNREADABLE
        if self.unequal:
            return UNEQUAL
        return "its answers differ from the run's first engine" if self.refused else NO_RUN

    @property
    def store_away(self) -> bool:
        """Whether a run may be leased from as soon as object storage answers again."""
        return any(isinstance(error, StoreAwayError) for error in self.unreadable.values())

    def names(self, facts: EngineFacts | None) -> list[RunName]:
        """Return the runs to be registered for: those asked for, or those of the model.

        Also before the engine is up, so that others see that it is on its way.
        """
        if self._only:
            return sorted(self._only)
        live = (info for info in self.infos if info.state not in OVER)
        if facts is None:
            wanted = model_name(self._model)
            return sorted(info.run for info in live if model_name(info.model) == wanted)
        return sorted(info.run for info in live if serves(info, facts))

    @property
    def stall_seconds(self) -> float | None:
        """The longest time without a token that one of the live runs allows; None: there is none.

        A run that is paused now counts, too: some of its items may still be in the engine.
        """
        live = [(info.run, info.fingerprint) for info in self.infos if info.state not in OVER]
        return max(
            (self._manifests[key].settings.stall_seconds for key in live if key in self._manifests),
            default=None,
        )

    def queue_of(self, info: RunInfo) -> PromptQueue:
        """Return the queue of a run under the epoch that ``info`` names."""
        key = (info.run, info.epoch)
        if key not in self._queues:
            self._queues[key] = PromptQueue(self._redis, info.run, info.epoch, self._limits)
        return self._queues[key]

    def present_queue(self, leased_from: RunInfo) -> PromptQueue | None:
        """Return the queue of the same run (name and rows) under its present epoch, if any."""
        for info in self.infos:
            if info.run == leased_from.run and info.fingerprint == leased_from.fingerprint:
                return self.queue_of(info)
        return None

    async def _activate(self, info: RunInfo, facts: EngineFacts) -> ActiveRun | None:
        try:
            manifest = await self._manifest(info)
        except StoreError as error:
            self._unread(info.run, error)
            return None
        if manifest.settings.reproducible and not facts.deterministic:
            self.unequal.add(info.run)
            self._leave_alone(
                info.run,
                "the run asks for equal tokens",
                "This engine's tokens depend on what runs beside them.",
                "gen-consumer --reproducible ...    (about half as fast)",
            )
            self._read_again(info.run)
            return None
        self.unequal.discard(info.run)
        try:
            objection = await self._objection(info)
        except StoreError as error:  # what its first engine said is not known, either
            self._unread(info.run, error)
            return None
        self._read_again(info.run)
        if objection:
            self.refused.add(info.run)
            return None
        self.refused.discard(info.run)
        return ActiveRun(info, manifest, self.queue_of(info))

    def _unread(self, run: RunName, error: StoreError) -> None:
        self.unreadable[run] = error
        self._leave_alone(run, error.what, error.why, error.fix)

    def _read_again(self, run: RunName) -> None:
        if trouble := self.unreadable.pop(run, None):
            self._said.discard((run, trouble.what))
            log.info("run can be read again", run=run)

    def _say_missing(self) -> None:
        """Say once of each run that was asked for that there is none such: a mistyped name?"""
        known = {info.run for info in self.infos}
        for run in self._only - known:
            missing = not_in_redis(run, known)
            self._leave_alone(run, "Redis has no such run", missing.what, missing.fix)

    def _say_mismatches(self, facts: EngineFacts) -> None:
        same = model_name(facts.model)
        for info in self.infos:
            near = info.run in self._only or (not self._only and model_name(info.model) == same)
            if near and info.state in LEASABLE and (why := mismatch(info, facts)):
                self._leave_alone(info.run, "the run is for another model", why)

    def _say_stops(self, facts: EngineFacts) -> None:
        """Say once of each run of this engine's what stops it; again if it went on meanwhile."""
        stops = {
            info.run: stop
            for info in self.infos
            if serves(info, facts, self._only)
            and (stop := stop_of(info.run, info.state, suspended=self.suspended))
        }
        stopped = {(run, stop.what) for run, stop in stops.items()}
        self._said -= self._stopped - stopped
        self._stopped = stopped
        for run, stop in stops.items():
            self._leave_alone(run, *stop)

    def _leave_alone(self, run: RunName, what: str, why: str = "", fix: str = "") -> None:
        if (run, what) not in self._said:
            self._said.add((run, what))
            log.warning("run left alone", run=run, what=what, why=why, fix=fix)

    async def _manifest(self, info: RunInfo) -> RunManifest:
        key = (info.run, info.fingerprint)
        if key not in self._manifests:
            path = RunPaths(info.run).run_json
            manifest = read_manifest(await asyncio.to_thread(self._store.get, path), path)
            try:
                refuse_other_name(manifest, info.run, self._store.url)
            except VerifyError as error:
                raise StoreError(error.what, why=error.why, fix=error.fix) from error
            if manifest.fingerprint != info.fingerprint:
                raise StoreError(
                    f"{path} is another run than the one in Redis.",
                    why=f"fingerprint {manifest.fingerprint}, in Redis {info.fingerprint}.",
                    fix="Point the consumer at the store that the run was loaded into.",
                )
            self._manifests[key] = manifest
        return self._manifests[key]
