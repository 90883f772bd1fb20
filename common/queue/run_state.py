"""Runs as a whole: made, listed, steered, counted, closed.

Reading changes nothing: :meth:`Runs.sample` is one script that cannot write.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from common.audit import check_counts
from common.errors import RunClosedError
from common.ids import Epoch, Item, RunName, WorkerName, item_of_job, new_epoch
from common.keys import RQ_SUSPENDED, RunKeys
from common.queue import workers
from common.queue.canary import canary_facts
from common.queue.failures import FailureInfo, read_reasons
from common.queue.item_state import read_item
from common.queue.run_facts import run_counts, run_info, texts, texts_of
from common.queue.run_list import RunList
from common.queue.same_run import refuse_other, settings_digest
from common.queue.scan import has_bit, open_bitmap, set_bits
from common.queue.scripts import ANY_EPOCH, Scripts, explain, run_is_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    import redis.asyncio

    from common.audit import RunCounts
    from common.queue.item_state import ItemState
    from common.queue.prompts import QueueLimits
    from common.records import RunInfo, RunManifest, Verdict

CANCEL_ITEMS = 1000
REQUEUE_ITEMS = 500
REASON_ITEMS = 1000  # a round trip
RESULTS_SHOWN = 200  # of the stream, where somebody wants to see one
_COMMIT_ITEMS = 500
_SETTLE_TRIES = 5
_SETTLE_SECONDS = 0.02


# Inside Runs, `list` is its method.
FailureInfos = list[FailureInfo]
WorkerInfos = list[workers.WorkerInfo]


class Runs:
    """All runs in one Redis.

    Raises, from every call that names a run:
        EpochError: it is not there.
        QueueError: the server refused or could not be reached.
    """

    def __init__(self, redis: redis.asyncio.Redis, limits: QueueLimits) -> None:
        self._redis: Any = redis  # its types allow for answers in text; ours are bytes
        self._limits = limits

    def _scripts(self, run: RunName, epoch: str = ANY_EPOCH) -> Scripts:
        return Scripts(self._redis, run, epoch)

    async def create(
        self,
        manifest: RunManifest,
        *,
        priority: int = 0,
        store: str = "",
        accepted: Collection[str] = (),
    ) -> RunInfo:
        """Make the run, under a new epoch; the same run is returned as it is.

        ``store`` is the URL of the object storage that holds it; ``accepted`` is what its canary
        does not hold it for any more.

        Raises:
            ConflictError: a run of this name has other rows or settings, or is in another store.
        """
        settings = manifest.settings
        facts = {
            "fingerprint": manifest.fingerprint,
            "model": settings.model,
            "model_fingerprint": settings.model_fingerprint,
            "created_by": manifest.genq_version,
            "settings": settings_digest(manifest),
            "store": store,
            **canary_facts(manifest, accepted),
        }
        answer = await self._scripts(manifest.run).call(
            "create",
            new_epoch(),
            manifest.items,
            settings.max_attempts,
            priority,
            *(part for pair in facts.items() for part in pair),
        )
        info = run_info(manifest.run, texts(answer))
        refuse_other(info, manifest, store)
        return info

    async def get(self, run: RunName) -> RunInfo | None:
        """Return what Redis knows of a run, or None."""
        facts = await self._ask(run, self._redis.hgetall(RunKeys(run).meta))
        return run_info(run, texts_of(facts)) if facts else None

    async def list(self) -> list[RunInfo]:
        """Return all runs: the highest priority first, then the oldest."""
        return await RunList(self._redis).look()

    async def sample(self, run: RunName) -> RunCounts:
        """Return where the run's items are.

        One script reads all of it at one moment. Only stock RQ workers move items in two steps:
        a sample that does not add up is taken again a few times before it is believed.
        """
        for _ in range(_SETTLE_TRIES):
            answer = await self._scripts(run).call("sample")
            counts = run_counts(run, answer)
            if not check_counts(counts):
                break
            await asyncio.sleep(_SETTLE_SECONDS)
        return counts

    async def restore(self, run: RunName, epoch: Epoch, *, committed: bytes) -> int:
        """Mark items as committed: bit ``k`` is item ``k``, the top bit of a byte first.

        At once where nothing was loaded yet; else item by item, as a sink's commit does: an item
        whose result is in the stream is left to it. Returns how many were not committed before.

        Raises:
            RunClosedError: the run is over.
        """
        bits = committed.rstrip(b"\0")
        if not bits:
            return 0
        scripts = self._scripts(run, epoch)
        if (marked := int(await scripts.call("restore", bits))) >= 0:
            return marked
        known = await self.committed(run)
        new = [item for item in set_bits(bits) if not has_bit(known, item)]
        marked = 0
        for start in range(0, len(new), _COMMIT_ITEMS):
            pairs = (part for item in new[start : start + _COMMIT_ITEMS] for part in (item, "-"))
            marked += int(await scripts.call("commit", self._limits.result_ttl_seconds, *pairs))
        return marked

    async def open(self, run: RunName) -> None:
        """Say that all chunks were enqueued; a run that was paused or held meanwhile stays so."""
        await self._move(run, "open", "loading")

    async def pause(self, run: RunName) -> str:
        """Hand nothing out until `resume`; what is leased goes on.

        Returns the state before: a held run stays held.
        """
        return await self._steer(run, "paused", "loading", "open")

    async def resume(self, run: RunName) -> str:
        """Hand out again, after `pause`. Returns the state before: a held run stays held."""
        return await self._steer(run, "open", "paused")

    async def accept(self, run: RunName) -> None:
        """Let a held run go on; its canary does not hold it for the same reason again."""
        await self._steer(run, "open", "paused", "held")

    async def hold(self, run: RunName, reason: str) -> None:
        """As `pause`, by us: ``reason`` says why, for ``status``."""
        await self._steer(run, "held", "loading", "open", reason=reason)

    async def cancel(self, run: RunName) -> None:
        """Take out what is open, in steps; what is committed or in the stream stays.

        Raises:
            RunClosedError: the run is finished.
        """
        try:
            while int(await self._scripts(run).call("cancel", CANCEL_ITEMS)):
                pass
        except RunClosedError:
            raise run_is_over(run, "closed", "cannot be cancelled") from None

    async def close(self, run: RunName) -> bool:
        """Close the run if every item is committed or dead; tell whether it is closed now."""
        return bool(await self._scripts(run).call("close"))

    async def reopen(self, run: RunName) -> None:
        """Open a closed run again; a cancelled one is to be loaded again.

        A cancel that was killed is finished first: the items that it took out are known to be
        missing only when all are out.
        """
        if await self._move(run, "open", "closed") == "cancelled":
            while int(await self._scripts(run).call("cancel", CANCEL_ITEMS, "rest")):
                pass
            await self._move(run, "loading", "cancelled")

    async def committed(self, run: RunName) -> bytes:
        """Return a bitmap of the committed items."""
        bitmap: bytes = await self._ask(run, self._redis.get(RunKeys(run).committed)) or b""
        return bitmap

    async def uncommit(self, run: RunName, epoch: Epoch, lost: Sequence[Item]) -> int:
        """Queue committed items again whose part was deleted; open the run if it is closed.

        Returns how many were committed.
        """
        scripts, given = self._scripts(run, epoch), 0
        for start in range(0, len(lost), REQUEUE_ITEMS):
            given += int(await scripts.call("uncommit", *lost[start : start + REQUEUE_ITEMS]))
        return given

    async def requeue(
        self, run: RunName, *, verdict: Verdict | None = None, items: Sequence[Item] = ()
    ) -> int:
        """Queue dead items again, with a fresh budget: those named, or all, or all of a class.

        Returns how many. In steps, so that the server is not held up.

        Raises:
            RunClosedError: `reopen` it first, once its ``_SUCCESS`` is gone.
        """
        chosen = list(items)
        if verdict or not items:
            wanted = set(items)
            dead = [item async for item, name in self._dead(run) if verdict in (None, name)]
            chosen = [item for item in dead if not items or item in wanted]
        given = 0
        for start in range(0, len(chosen), REQUEUE_ITEMS):
            some = chosen[start : start + REQUEUE_ITEMS]
            given += int(await self._scripts(run).call("requeue", *some))
        return given

    async def set_priority(self, run: RunName, priority: int) -> int:
        """Set which of several runs is served first, the higher; return what it was before.

        Consumers obey within seconds. What is leased goes on. Only Redis knows it: after a loss of
        Redis the run is loaded with the priority that `load` names.
        """
        return int(await self._scripts(run).call("priority", priority))

    async def trace(self, run: RunName, item: Item) -> ItemState:
        """Return all that is known of one item. Changes nothing."""
        return await read_item(self._redis, run, item)

    async def open_items(self, run: RunName) -> bytes:
        """Return a bitmap of the items that are anywhere: open, dead or answered.

        The run goes on meanwhile, so a zero bit is a hint: `PromptQueue.enqueue_missing` looks
        again before it believes it.
        """
        info = await self.get(run)
        items = info.items if info else 0
        bitmap: bytes = await self._ask(run, open_bitmap(self._redis, run, items))
        return bitmap

    async def failures(self, run: RunName, *, limit: int) -> FailureInfos:
        """Return dead items with their reasons, at most ``limit``."""
        found: dict[Item, str] = {}
        async for item, name in self._dead(run):
            if len(found) == limit:
                break
            found[item] = name
        return await self.reasons(run, found)

    async def dead_examples(
        self, run: RunName, *, each: int, verdict: Verdict | None = None
    ) -> tuple[dict[str, int], dict[Item, str]]:
        """Return how many items are dead, by class, the commonest first; and some of each class.

        Of a class at most ``each``, in their order; with ``verdict`` of that
        class only.
        """
        tally: dict[str, int] = {}
        some: dict[str, list[Item]] = {}
        async for item, name in self._dead(run):
            tally[name] = tally.get(name, 0) + 1
            if verdict in (None, name) and len(kept := some.setdefault(name, [])) < each:
                kept.append(item)
        ordered = dict(sorted(tally.items(), key=lambda pair: (-pair[1], pair[0])))
        return ordered, {item: name for name in ordered for item in sorted(some.get(name, ()))}

    async def dead_items(self, run: RunName) -> dict[Item, str]:
        """Return all dead items with their classes; their reasons are much larger."""
        return {item: name async for item, name in self._dead(run)}

    async def reasons(self, run: RunName, dead: Mapping[Item, str]) -> FailureInfos:
        """Return why dead items failed, given with their classes; in their order."""
        pairs, told = list(dead.items()), FailureInfos()
        for start in range(0, len(pairs), REASON_ITEMS):
            some = dict(pairs[start : start + REASON_ITEMS])
            told += await self._ask(run, read_reasons(self._redis, run, some))
        return told

    async def watched(self, run: RunName) -> dict[Item, str]:
        """Return the first items, which the canary watches, with the class that each came to.

        "" for one that has not finished; none at all once the canary is content.
        """
        found = await self._ask(run, self._redis.hgetall(RunKeys(run).canary))
        return {Item(int(item)): name.decode() for item, name in found.items()}

    async def results(self, run: RunName, items: Collection[Item]) -> dict[Item, bytes]:
        """Return the results of ``items`` that are among the oldest in the stream, as encoded."""
        stream = RunKeys(run).stream
        entries = await self._ask(run, self._redis.xrange(stream, count=RESULTS_SHOWN))
        found = {Item(int(fields[b"n"])): fields[b"p"] for _, fields in entries}
        return {item: found[item] for item in items if item in found}

    async def failures_by_class(self, run: RunName, *, limit: int | None = None) -> dict[str, int]:
        """Return how many items are dead, by class; the commonest first.

        With ``limit`` about so many are looked at, which lie in no order: what is cheap enough for
        a look every few seconds.
        """
        tally: dict[str, int] = {}
        looked = 0
        async for _, name in self._dead(run):
            tally[name] = tally.get(name, 0) + 1
            looked += 1
            if looked == limit:
                break
        return dict(sorted(tally.items(), key=lambda pair: -pair[1]))

    async def ended_since(
        self, run: RunName, at: float, spans: Sequence[float]
    ) -> tuple[Sequence[int], float | None]:
        """Return how many results were taken in the last so many seconds before ``at``, for each.

        And how long ago the oldest one was that is still known: RQ's window of finished jobs tells
        it, and reaches back as long as RQ keeps those.
        """
        keep, key = self._limits.result_ttl_seconds, RunKeys(run).finished
        async with self._redis.pipeline(transaction=False) as pipe:
            for seconds in spans:  # an entry's score is when it ends, in whole seconds
                pipe.zcount(key, at + keep - seconds, "+inf")
            pipe.zrangebyscore(key, at, "+inf", start=0, num=1, withscores=True)
            *counts, oldest = await self._ask(run, pipe.execute())
        return counts, max(0.0, at + keep - oldest[0][1]) if oldest else None

    async def workers(self) -> WorkerInfos:
        """Return the workers that are registered with RQ, with their figures."""
        found: WorkerInfos = await self._ask(RunName("*"), workers.all_workers(self._redis))
        return found

    async def set_gauges(
        self, worker: WorkerName, mapping: Mapping[str, str | int | float], ttl: int
    ) -> None:
        """Publish a worker's figures for ``ttl`` seconds."""
        await self._ask(RunName("*"), workers.set_gauges(self._redis, worker, mapping, ttl))

    async def reference(self, run: RunName, offered: bytes) -> bytes:
        """Return what the first caller offered for this run: now ``offered``, if nobody did yet.

        Redis may lose it; what is to last is kept by :mod:`common.first_engine`.
        """
        key = RunKeys(run).reference
        before = await self._ask(run, self._redis.set(key, offered, nx=True, get=True))
        return offered if before is None else bytes(before)

    async def suspended(self) -> bool:
        """Tell whether somebody has run ``rq suspend``."""
        return bool(await self._ask(RunName("*"), self._redis.exists(RQ_SUSPENDED)))

    async def _dead(self, run: RunName) -> AsyncIterator[tuple[Item, str]]:
        """Yield dead items with their classes; an item may come twice while Redis moves things."""
        keys = RunKeys(run)
        cursor, first = 0, True
        while cursor or first:
            first = False
            scan = self._redis.hscan(keys.dead, cursor, count=1000)
            cursor, classes = await self._ask(run, scan)
            ids = [f"{run}-{int(n)}" for n in classes]
            if not ids:
                continue
            # `rq requeue` takes an item out of rq:failed without telling us.
            scores = await self._ask(run, self._redis.zmscore(keys.failed, ids))
            for job, name, score in zip(ids, classes.values(), scores, strict=True):
                item = item_of_job(run, job)
                if score is not None and item is not None:
                    yield item, name.decode()

    async def _move(self, run: RunName, to: str, *origins: str, reason: str = "") -> str:
        before = await self._scripts(run).call("state", to, reason, *origins)
        return str(before.decode())

    async def _steer(self, run: RunName, to: str, *origins: str, reason: str = "") -> str:
        before = await self._move(run, to, *origins, reason=reason)
        if before in ("closed", "cancelled"):
            raise run_is_over(run, before, f"cannot be {'resumed' if to == 'open' else to}")
        return before

    async def _ask(self, run: RunName, question: Any) -> Any:
        try:
            return await question
        except (RedisError, OSError) as error:
            raise explain(error, run, "reading") from error
