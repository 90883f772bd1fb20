"""Items that wait, are leased and are tried again: what producers and consumers do to a run.

Promised: an item is leased to at most one worker; of all the results that are brought for it the
first is taken, whoever brings it, and the others are counted as waste; an item that was loaded is
in exactly one place (queue, waiting, leased, stream, committed, dead) after every call.
Not promised: that an item is worked on only once. A worker that is slower than its lease may
find that somebody else has the item, too.

Every call names the run's epoch, and raises as :class:`common.queue.scripts.Scripts` says. Each
may be repeated with the same arguments when its answer was lost, and then answers the same.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import RedisError

from common.ids import Epoch, Item, RunName, Token, WorkerName, new_nonce
from common.queue.failures import encode_reason
from common.queue.scripts import ANY_EPOCH, Scripts, explain
from common.records import Failure, Finished, Leased, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import redis.asyncio

    from common.queue.failures import FailureInfo

log = structlog.get_logger()
CHUNK_ITEMS = 1000
LEASE_ITEMS = 1000  # most items that one call may lease
TURNS_BYTES = 1 << 20  # of one conversation's kept turns, packed; longer ones are not kept
ALL_TURNS_BYTES = 128 << 20  # of a run's kept turns; past it no more are kept until some are gone
COMPLETE_ITEMS = 32  # most results a call: bigger batches stall the server
REAP_ITEMS = 100  # most items of each kind that one visit of the reaper moves
_REPAIR_ITEMS = 500
_REPAIR_ENTRIES = 2_000_000  # of the queue looked through in one call: some 0.1 s


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The bounds that the queue's scripts work with."""

    lease_seconds: float = 60.0
    stream_entries: int = 20_000
    stream_bytes: int = 512 * 2**20
    max_deliveries: int = 20
    retry_base_seconds: float = 5.0
    retry_cap_seconds: float = 300.0
    result_ttl_seconds: int = 500
    failure_ttl_seconds: int = 365 * 86_400
    max_deaths: int = 6  # of the engine under one item: three in company, then three alone

    @property
    def lease_ms(self) -> int:
        """The length of a lease as the scripts take it."""
        return int(self.lease_seconds * 1000)


class Outcome(StrEnum):
    """What became of a result that was brought."""

    FIRST = "first"
    DUPLICATE = "duplicate"  # the item had one already; this one is waste


class FailOutcome(StrEnum):
    """What became of an item whose try failed."""

    RETRY = "retry"  # it waits until a retry is due
    DEAD = "dead"
    RELEASED = "released"  # back on the queue: the item is not to blame
    STALE = "stale"  # the lease was lost before; nothing was changed


@dataclass(frozen=True, slots=True)
class Reaped:
    """What one visit of the reaper did."""

    expired: int = 0  # leases taken back
    promoted: int = 0  # due retries put on the queue
    swept: int = 0  # items taken back that stock RQ workers had left behind
    dead: int = 0
    more: bool = False  # call again


_OUTCOMES = {"F": Outcome.FIRST, "D": Outcome.DUPLICATE}
_FAIL_OUTCOMES = {
    "R": FailOutcome.RETRY,
    "D": FailOutcome.DEAD,
    "B": FailOutcome.RELEASED,
    "S": FailOutcome.STALE,
}


class PromptQueue:
    """The queue of one run, in one of its epochs."""

    def __init__(
        self, redis: redis.asyncio.Redis, run: RunName, epoch: Epoch, limits: QueueLimits
    ) -> None:
        self._redis = redis
        self._limits = limits
        self._scripts = Scripts(redis, run, epoch)
        self._owner = new_nonce()
        self.run = run
        self.epoch = epoch

    async def enqueue(self, chunk: int) -> int:
        """Put the items ``[chunk * 1000, chunk * 1000 + 1000)`` on the queue.

        A chunk is put there once; items that have a result are left out. Returns how many ids
        went on the queue.
        """
        return int(await self._scripts.call("enqueue", chunk))

    async def enqueue_missing(self, items: Sequence[Item]) -> int:
        """Put those of ``items`` on the queue that were loaded and are nowhere any more.

        Looks everywhere for each. Items of chunks that were never enqueued are left alone.
        Returns how many ids went on the queue.
        """
        pushed, start = 0, 0
        while start < len(items):
            some = items[start : start + _REPAIR_ITEMS]
            new, looked = await self._scripts.call("enqueue_missing", _REPAIR_ENTRIES, *some)
            pushed += int(new)
            start += int(looked)
        return pushed

    async def lease(self, worker: WorkerName, n: int, *, request: str) -> list[Leased]:
        """Lease up to ``n`` items (at most 1000); ``request`` is a fresh nonce of each new call.

        Returns none when nothing waits, when the run is paused, held, closed or cancelled, when
        RQ's workers are suspended, and while the results stream is over its high-water mark.
        """
        limits = self._limits
        answer = await self._scripts.call(
            "lease",
            worker,
            request,
            min(n, LEASE_ITEMS),
            limits.lease_ms,
            limits.stream_entries,
            limits.stream_bytes,
        )
        leased = []
        for place, text in enumerate(answer.decode().split()):
            item, attempt, delivery, deaths = (int(part) for part in text.split(":"))
            token = Token(f"{request}{place:02d}")
            leased.append(Leased(Item(item), token, attempt, delivery, deaths))
        return leased

    async def extend(self, worker: WorkerName, held: Sequence[tuple[Item, Token]]) -> list[Item]:
        """Renew leases; return the items that the worker no longer holds.

        A lease that expired is taken up again where nobody has had the item since.
        """
        lost = await self._scripts.call("extend", worker, self._limits.lease_ms, *_flat(held))
        return [Item(int(item)) for item in lost]

    async def complete(
        self, worker: WorkerName, batch: Sequence[Finished], *, request: str
    ) -> list[Outcome]:
        """Hand results over, at most 32 a call; the first result of an item is taken.

        It is taken even from a worker whose lease has expired; the item is then withdrawn from
        wherever it is, another worker's lease included. Counts the worker's finished jobs in its
        RQ record.

        Raises:
            ValueError: more than 32.
        """
        if len(batch) > COMPLETE_ITEMS:
            raise ValueError(f"{len(batch)} results in one call; at most {COMPLETE_ITEMS}")
        args: list[str | bytes | int] = []
        for done in batch:
            args += (done.item, done.token, done.verdict, done.payload)
            args += (done.prompt_tokens, done.completion_tokens)
        answer = await self._scripts.call(
            "complete", worker, request, self._limits.result_ttl_seconds, *args
        )
        return [_OUTCOMES[letter] for letter in answer.decode()]

    async def save_turns(self, worker: WorkerName, item: Item, token: Token, packed: bytes) -> bool:
        """Keep the finished turns of a conversation for the item's next holder.

        They are gone when the item is answered, dead or cancelled. Returns whether they are kept:
        not if the lease is not held, and not if a run's kept turns would take more than 128 MiB.
        """
        args = (worker, token, ALL_TURNS_BYTES, item, packed)
        return bool(await self._scripts.call("progress", *args))

    async def saved_turns(self, worker: WorkerName, item: Item, token: Token) -> bytes:
        """Return the turns that are kept for the item's holder; none: empty."""
        args = (worker, token, ALL_TURNS_BYTES, item)
        return bytes(await self._scripts.call("progress", *args))

    async def release(self, worker: WorkerName, held: Sequence[tuple[Item, Token]]) -> int:
        """Give leases back: the items go to the head of the queue, and nothing is charged.

        Returns how many were given back: those that the worker still held.
        """
        return int(await self._scripts.call("release", worker, _request(held), *_flat(held)))

    async def fail(self, worker: WorkerName, failures: Sequence[Failure]) -> list[FailOutcome]:
        """End leases without a result.

        Charged: an attempt is used up; the item waits for a retry (exponential, jittered,
        capped), or is dead when none is left. Not charged: it goes back to the head of the
        queue, and a delivery is counted, but for ``busy``. An engine's death is counted, too;
        from the third one on only deaths that the item died alone are. Texts are cut to 2 kB.
        Counts charged failures in the worker's RQ record.
        """
        limits = self._limits
        args: list[str | bytes | int | float] = []
        for failure in failures:
            args += (failure.item, failure.token, failure.verdict, encode_reason(failure.text))
            args += (_kind(failure), failure.completion_tokens, random.random())
        answer = await self._scripts.call(
            "fail",
            worker,
            _request([(failure.item, failure.token) for failure in failures]),
            limits.retry_base_seconds,
            limits.retry_cap_seconds,
            limits.max_deliveries,
            limits.max_deaths,
            limits.failure_ttl_seconds,
            *args,
        )
        return [_FAIL_OUTCOMES[letter] for letter in answer.decode()]

    async def bury_again(self, letters: Sequence[FailureInfo]) -> int:
        """Put dead letters back, as storage tells of them, in a run that is being loaded again.

        Before their chunks are enqueued, and after what is committed was restored: an item that is
        anywhere by then is left there. Returns how many are dead now that were nowhere.
        """
        args: list[str | bytes | int] = [self._limits.failure_ttl_seconds]
        for one in letters:
            moment = max(1, int(one.at * 1000))  # 0 is no id of a stream's entry
            args += (one.item, one.verdict, one.worker, moment, encode_reason(one.text))
        return int(await self._scripts.call("rebury", *args))

    async def renew(self, epoch: Epoch) -> Epoch:
        """Give the run the epoch ``epoch`` in place of this queue's, and return the one it has.

        Sinks and consumers then look at the run, and at storage, as if they had never seen it.
        """
        scripts = Scripts(self._redis, self._scripts.run, ANY_EPOCH)
        return Epoch((await scripts.call("renew", self._scripts.epoch, epoch)).decode())

    async def recount(self, stored: Mapping[str, int]) -> bool:
        """Say how many completions of each verdict object storage holds, after a repair.

        Redis counts what it sees; what it forgot, or storage lost, it cannot. Returns whether it is
        known now by verdict what there is: not so if a sink has stored more meanwhile.
        """
        pairs = (part for pair in stored.items() for part in pair)
        return bool(await self._scripts.call("recount", *pairs))

    async def reap(self) -> Reaped:
        """Take expired leases back, put due retries on the queue, sweep up after stock workers.

        At most 100 of each kind a call: repeat while ``more``. Callers take turns: who comes
        while another has been at it within two seconds does nothing. Leases do not expire within
        one lease's length of a start of Redis or of the run's epoch. After the server's clock was
        set back, by a second or by days, a lease still ends no later than the longest one in force,
        and a retry waits no longer than the longest wait; those that would are logged.
        """
        limits = self._limits
        server = await self._server_run_id()
        expired, promoted, dead, more, calm, rewound = await self._scripts.call(
            "reap",
            self._owner,
            server,
            limits.lease_ms,
            limits.max_deliveries,
            limits.failure_ttl_seconds,
            encode_reason("Every delivery ended without a result: its lease expired."),
            REAP_ITEMS,
        )
        if rewound:
            log.warning("the clock of Redis was set back", run=self.run, set_anew=rewound)
        if not calm:
            return Reaped(promoted=promoted, more=bool(more))
        swept, buried, again = await self._scripts.call(
            "sweep",
            self._owner,
            limits.max_deliveries,
            limits.failure_ttl_seconds,
            encode_reason("A stock RQ worker took it time and again, and failed."),
            REAP_ITEMS,
        )
        return Reaped(expired, promoted, swept, dead + buried, bool(more or again))

    async def _server_run_id(self) -> str:
        try:
            return str((await self._redis.info("server")).get("run_id", ""))
        except (RedisError, OSError) as error:
            raise explain(error, self.run, "reap") from error


def _flat(held: Sequence[tuple[Item, Token]]) -> list[str | int]:
    return [part for pair in held for part in pair]


def _request(held: Sequence[tuple[Item, Token]]) -> str:
    """Return an id that the same call, repeated, has again: a token is never given out twice."""
    text = " ".join(f"{item}:{token}" for item, token in held)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _kind(failure: Failure) -> str:
    if failure.final:
        return "final"
    if failure.charged:
        return "charged"
    if failure.engine_died:
        return "died-alone" if failure.alone else "died"
    return "busy" if failure.verdict is Verdict.BUSY else "fault"
