"""`gen-producer load`: rows to object storage, then run.json, then ids to Redis.

In that order, so that a kill at any point leaves either nothing that anybody reads, or a run whose
rows are all there. Given again, the command finds what is done and does the rest; given with other
rows or settings it is refused with the difference.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from common.errors import ConflictError, UsageError
from common.failpoint import declare, hit
from common.ids import Item, RunName, run_name, suggest_run_name
from common.model import model_fingerprint
from common.no_such_run import not_in_store
from common.objectstore import RunPaths
from common.prove import committed_items
from common.queue.run_state import Runs
from common.queue.same_run import refuse_other
from common.queue.scan import bits_without, set_bits
from common.records import RunSettings
from common.redis_client import connect
from common.s3 import open_store
from common.unfinished import forget_cancelled
from producer.load.conflict import conflict, rows_difference
from producer.load.enqueue import Enqueued, Enqueuer, incomplete
from producer.load.finished import loss_of
from producer.load.leftovers import refuse_leftovers
from producer.load.lengths import check_note, length_check
from producer.load.policies import refuse_idle
from producer.load.rows import ReadOptions
from producer.load.spool import Spool, spool, spool_folder
from producer.load.upload import upload_shards
from producer.manifest import (
    Wishes,
    find_manifest,
    make_manifest,
    publish,
    settings_differences,
)
from producer.sources.url import STDIN, sources_of, stem_of
from producer.steer.acceptance import read_accepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import redis.asyncio

    from common.objectstore import ObjectStore
    from common.parts.index import FoundPart
    from common.queue.failures import FailureInfo
    from common.records import RunInfo, RunManifest
    from common.settings import Settings
    from producer.console import Console
    from producer.sources.records import Fault

declare("load.after_spool", "load.after_shards", "load.after_run_json")


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What a command line asked for."""

    datasets: tuple[str, ...] = ()
    run: str | None = None
    wishes: Wishes = field(default_factory=Wishes)
    read: ReadOptions = field(default_factory=ReadOptions)
    split: str | None = None  # of folders and data sets of the hub
    context: int | None = None  # tokens of prompt and answer together; None: the model's own
    priority: int = 0
    dry_run: bool = False
    # Dead letters that are dead again where Redis has lost the run: all others are tried again.
    dead: Callable[[], Iterable[FailureInfo]] = tuple


@dataclass(frozen=True, slots=True)
class Loaded:
    """How a load ended."""

    run: RunName
    outcome: str  # loaded | continued | already | repaired | restored | finished | dry-run
    rows: int
    items: int
    new: int = 0
    committed: int = 0
    skipped: int = 0
    kinds: Counter[str] = field(default_factory=Counter)  # of the skipped, by class
    state: str = ""
    faults: list[Fault] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


def load(request: LoadRequest, settings: Settings, console: Console) -> Loaded:
    """Carry a load out; see the module.

    Raises:
        UsageError, InputError, ConflictError, StoreError, QueueError
    """
    run = _name(request)
    if request.dry_run and not settings.store:
        return _dry_run(_Load(request, settings, console, run, None), None)
    store = open_store(settings)
    next(iter(store.list(f"{run}/")), None)  # a missing bucket or right shows before the reading
    this = _Load(request, settings, console, run, store)
    standing = find_manifest(store, run)
    if request.dry_run:
        return _dry_run(this, standing)
    known = asyncio.run(this.look_in_redis())
    if known is not None and request.priority not in {0, known.priority}:
        console.say(
            f"Note: run {run} keeps its priority {known.priority}. To change it:"
            f" gen-producer priority {run} {request.priority}"
        )
    manifest, found = this.put_up(standing, known)
    finished = store.stat(RunPaths(run).success) is not None
    if finished and not this.reopen_unless_whole(manifest):
        return _loaded("finished", manifest, found)
    if known is not None and known.state == "closed":
        lost = this.lost(committed_items(store, manifest, each=this.tally))
        done = asyncio.run(this.put_back(manifest, known, lost, anew=finished))
        return _loaded("repaired" if done.new else "already", manifest, found, done)
    forget_cancelled(store, run)  # from here on it is wanted
    fresh = known is None or this.incomplete
    reads = fresh or any(this.committed)  # also where run.json alone was gone
    stored = committed_items(store, manifest, each=this.tally) if reads else b""
    done = asyncio.run(this.enqueue(manifest, stored))
    if known is not None and reads and (lost := this.lost(stored)):
        again = asyncio.run(this.put_back(manifest, known, lost, anew=False))
        done = replace(done, new=done.new + again.new)
    if known is None and (standing is not None or any(stored)):
        outcome = "restored"
    elif standing is None:
        outcome = "loaded"
    elif fresh:
        outcome = "continued"
    else:
        outcome = "repaired" if done.new else "already"
    return _loaded(outcome, manifest, found, done)


def _loaded(
    outcome: str, manifest: RunManifest, found: Spool | None, done: Enqueued | None = None
) -> Loaded:
    return Loaded(
        run=manifest.run,
        outcome=outcome,
        rows=manifest.rows,
        items=manifest.items,
        new=done.new if done else 0,
        committed=done.restored if done else 0,
        state=done.state if done else "",
        skipped=found.skipped if found else 0,
        kinds=found.kinds if found else Counter(),
        faults=found.faults if found else [],
        notes=+found.notes if found else Counter(),
    )


def _dry_run(this: _Load, standing: RunManifest | None) -> Loaded:
    if not this.request.datasets:
        raise UsageError("--dry-run needs a data set.", fix="gen-producer load FILE --dry-run")
    with spool_folder() as folder:
        wanted = this.wanted(standing)
        found = this.read(folder, wanted)
        manifest = make_manifest(this.run, wanted, found, this.source)
        this.compare(standing, manifest, found)
        return _loaded("dry-run", manifest, found)


def _name(request: LoadRequest) -> RunName:
    if request.run is not None:
        return run_name(request.run)
    if not request.datasets:
        raise UsageError(
            "There is nothing to load.",
            why="Neither a data set nor a run is named.",
            fix="gen-producer load prompts.jsonl    (or, after a loss of Redis: load --run NAME)",
        )
    if request.datasets[0] == STDIN:
        raise UsageError(
            "What comes from standard input needs a name.", fix="gen-producer load - --run NAME"
        )
    return suggest_run_name(stem_of(request.datasets[0]))


class _Load:
    """One load: the request, and the parts that carry it out."""

    def __init__(
        self,
        request: LoadRequest,
        settings: Settings,
        console: Console,
        run: RunName,
        store: ObjectStore | None,
    ) -> None:
        self.request = request
        self.run = run
        self.source = " ".join(request.datasets)
        self.incomplete = False  # Redis knows the run, and some of its ids were never queued
        self._verdicts: Counter[str] = Counter()  # of the completions in storage, once it was read
        self.committed = b""  # what Redis takes for committed, before storage was read
        self._settings = settings
        self._console = console
        self._store = store
        self._dead = request.dead

    def wanted(self, standing: RunManifest | None) -> RunSettings:
        """Return the settings asked for; without a data set, those of the run count as asked."""
        wanted = self._wanted(standing)
        refuse_idle(wanted)
        return wanted

    def _wanted(self, standing: RunManifest | None) -> RunSettings:
        wishes = self.request.wishes
        if standing is not None and not self.request.datasets:
            return wishes.over(standing.settings, model_fingerprint)
        model = (
            wishes.model or self._settings.model or (standing.settings.model if standing else "")
        )
        if not model:
            raise UsageError(
                "No model is named.",
                why="A run's completions all come from one model.",
                fix="gen-producer load ... --model NAME    (or: export GENQ_MODEL=NAME)",
            )
        base = RunSettings(model=model, model_fingerprint=model_fingerprint(model))
        return wishes.over(base, model_fingerprint)

    def read(self, folder: Path, wanted: RunSettings) -> Spool:
        """Read the whole data set; nothing has left this machine yet."""
        sources = sources_of(self.request.datasets, self._open_bucket, split=self.request.split)
        check = length_check(self.request.context, wanted)
        with self._console.progress("Reading", self.request.read.limit) as progress:
            found = spool(sources, self.request.read, folder, check=check, progress=progress)
        if note := check_note(check, wanted.model):
            self._console.say(f"Note: {note}")
        hit("load.after_spool")
        return found

    def reopen_unless_whole(self, manifest: RunManifest) -> bool:
        """Take _SUCCESS away from a run that has lost something since; return whether it had.

        Raises:
            StoreError: the store could not be asked.
            VerifyError: a part is damaged, or one that others follow was deleted.
        """
        assert self._store is not None
        loss = loss_of(self._store, manifest)
        if not loss:
            return False
        if loss.completions:
            self._console.say(
                f"Note: {loss.completions:,} of {loss.said:,} completions of the finished run are"
                f" gone from {self._store.url}/{self.run}/data; they are made again."
            )
        else:
            self._console.say(
                f"Note: the last objects of run {self.run} do not tell what"
                f" {self._store.url}/{self.run}/data holds; a sink writes them again."
            )
        self._store.delete(RunPaths(self.run).success)
        self._dead = loss.dead
        return True

    def compare(self, standing: RunManifest | None, new: RunManifest, found: Spool) -> None:
        """Refuse rows that differ from the run's; without its run.json, from what else is there."""
        if standing is None:
            if self._store is not None:
                refuse_leftovers(self._store, new)
            return
        if standing.fingerprint != new.fingerprint:
            assert self._store is not None
            differences = rows_difference(self._store, standing, found)
            raise self._conflict(standing, "rows", differences)
        self._compare_settings(standing, new.settings)

    def put_up(
        self, standing: RunManifest | None, known: RunInfo | None
    ) -> tuple[RunManifest, Spool | None]:
        """Return run.json as it stands in the end, with all the shards that it names."""
        assert self._store is not None
        if standing is None and not self.request.datasets:
            raise not_in_store(
                self._store,
                self.run,
                fix=f"gen-producer load DATASET --run {self.run}    (without a data set, a run is"
                " put back from object storage alone)",
            )
        wanted = self.wanted(standing)
        if standing is not None:
            self._compare_settings(standing, wanted)  # before minutes of reading
        if standing is not None and not self.request.datasets:
            if known is not None:
                refuse_other(known, standing, self._store.url)
            return standing, None
        with spool_folder() as folder:
            found = self.read(folder, wanted)
            manifest = make_manifest(self.run, wanted, found, self.source)
            self.compare(standing, manifest, found)
            if known is not None:
                refuse_other(known, manifest, self._store.url)
            with self._console.progress("Storing", len(found.shards)) as progress:
                upload_shards(self._store, self.run, found, progress=progress)
            hit("load.after_shards")
            stands = standing or publish(self._store, manifest)
            hit("load.after_run_json")
            self.compare(stands, manifest, found)  # another load may have been faster
            return stands, found

    async def look_in_redis(self) -> RunInfo | None:
        """Return what Redis knows of the run; fails early where Redis cannot be used."""
        warn = self._console.warn
        async with await connect(self._settings, name="load", writes=True, warn=warn) as client:
            runs = Runs(client, self._settings.limits())
            info = await runs.get(self.run)
            if info is not None:
                self.incomplete = await incomplete(runs, info)
                self.committed = await runs.committed(self.run)
            return info

    def tally(self, part: FoundPart) -> None:
        """Count the verdicts of a part that is read."""
        self._verdicts.update(part.index.verdicts)

    def lost(self, stored: bytes) -> list[Item]:
        """Return the committed items that are not in ``stored``, a bitmap of what the parts hold.

        A part is there before its items are committed, so that what was committed before the parts
        were read, and is in none, is gone, though a sink goes on.
        """
        return [Item(k) for k in set_bits(bits_without(self.committed, stored))]

    async def enqueue(self, manifest: RunManifest, committed: bytes) -> Enqueued:
        """Put all ids on the queue that are not anywhere yet."""
        async with await connect(self._settings, name="load", writes=True) as client:
            enqueuer = self._enqueuer(client, manifest)
            with self._console.progress("Queueing", manifest.items) as progress:
                return await enqueuer.enqueue(
                    priority=self.request.priority,
                    committed=committed,
                    progress=progress,
                    dead=self._dead,
                )

    async def put_back(
        self, manifest: RunManifest, known: RunInfo, lost: Sequence[Item], *, anew: bool
    ) -> Enqueued:
        """Queue what object storage lost; ``anew``: the run's end is to be written again."""
        assert self._store is not None
        if lost and not anew:
            self._console.say(
                f"Note: {len(lost):,} completions of run {self.run} are gone from"
                f" {self._store.url}/{self.run}/data; they are made again."
            )
        async with await connect(self._settings, name="load", writes=True) as client:
            return await self._enqueuer(client, manifest).put_back(known, lost, anew=anew)

    def _enqueuer(self, client: redis.asyncio.Redis, manifest: RunManifest) -> Enqueuer:
        assert self._store is not None
        return Enqueuer(
            client,
            self._settings.limits(),
            manifest,
            warn=self._console.warn,
            store=self._store.url,
            accepted=read_accepted(self._store, self.run),
            verdicts=self._verdicts,
        )

    def _open_bucket(self, bucket: str) -> ObjectStore:
        return open_store(self._settings.model_copy(update={"store": f"s3://{bucket}"}))

    def _compare_settings(self, standing: RunManifest, wanted: RunSettings) -> None:
        if differences := settings_differences(standing.settings, wanted):
            raise self._conflict(standing, "settings", differences)

    def _conflict(self, standing: RunManifest, kind: str, differences: list[str]) -> ConflictError:
        again = suggest_run_name(f"{self.run[:60]}-2")
        return conflict(standing, kind, differences, source=self.source or "DATASET", again=again)
