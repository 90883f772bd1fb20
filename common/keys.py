"""Every Redis key, spelled once: RQ's formats, which its tools read, and ours.

Types and meanings of the keys of one run (``n`` is an item's number, ``R-n`` its job id):

    RQ's (facts of rq 3.0)
    queue         list    job ids waiting; the head is next
    intermediate  list    ids that a stock RQ worker is taking
    job           hash    one a job: data, origin, status, and while it runs worker_name, started_at
    wip           zset    ``R-n:token`` -> +inf: mirror of the leases, for `rq info`
    scheduled     zset    job id -> due time (unix s): retries that wait
    failed        zset    job id -> expiry of the entry: dead letters
    finished      zset    job id -> expiry of the entry: a window of RQ's result TTL
    results       stream  one a failed job: RQ's result record with the reason

    Ours
    meta          hash    epoch, state, settings that the scripts need, counters' bounds
    counts        hash    counters that cannot be had from another key
    lease         zset    n -> deadline (unix ms, Redis' clock)
    holder        hash    n -> ``token worker``
    done          bitmap  bit n: a result is in the stream or committed
    committed     bitmap  bit n: the sink has said that it is on object storage
    chunks        bitmap  bit c: load chunk c was enqueued
    stream        stream  results on their way to the sink; consumer group ``sink``
    deliveries    hash    n -> deliveries that ended without a verdict
    deaths        hash    n -> engine deaths that the item was in
    dead          hash    n -> class of the failure that dead-lettered it
    ghosts        set     n: ids left in the queue whose item has a result
    expired       hash    n -> the holder that the reaper took the item from, until it is handed out
    answers       hash    ``worker:operation`` -> last request id and its answer, for repeated calls
    turns         hash    n -> finished turns of a conversation under way (zstd of their JSON)
    seen          hash    job id -> when RQ was first seen to move it (unix ms)
    foreign       list    ids found in the queue that are not the run's
    canary        hash    n -> "": a watched item, or the class of its first finished try
    reference     string  how the first engine that served the run answered the test prompts
    scratch       any     of use inside one script only
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.ids import RunName, WorkerName

# RQ reads the same variable (rq.defaults); importing rq only for this would cost 0.2 s of start-up.
_RQ = os.environ.get("RQ_KEY_PREFIX", "rq")
_OURS = "genq"

RQ_QUEUES = f"{_RQ}:queues"
RQ_SUSPENDED = f"{_RQ}:suspended"
RQ_WORKERS = f"{_RQ}:workers"
RQ_WORKER_PREFIX = f"{_RQ}:worker:"
RQ_PUBSUB_PREFIX = f"{_RQ}:pubsub:"  # channel: commands to one worker
RQ_QUEUE_PREFIX = f"{_RQ}:queue:"
RUNS = f"{_OURS}:runs"  # zset: run name -> creation time (unix s)
STARTED = f"{_OURS}:started"  # hash: the Redis process that was last seen, and since when
SINK_LOCK = f"{_OURS}:sink"  # string: the one sink of single-writer mode; expires with its lease
PROBE_KEYS = (f"{_RQ}:queue:probe", f"{_OURS}:meta:probe")  # never written: is it allowed?


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of one run."""

    run: RunName

    def _rq(self, kind: str) -> str:
        return f"{_RQ}:{kind}:{self.run}"

    def _own(self, kind: str) -> str:
        return f"{_OURS}:{kind}:{self.run}"

    @property
    def queue(self) -> str:
        return self._rq("queue")

    @property
    def intermediate(self) -> str:
        return f"{self.queue}:intermediate"

    @property
    def wip(self) -> str:
        return self._rq("wip")

    @property
    def scheduled(self) -> str:
        return self._rq("scheduled")

    @property
    def failed(self) -> str:
        return self._rq("failed")

    @property
    def finished(self) -> str:
        return self._rq("finished")

    @property
    def job_prefix(self) -> str:
        """What precedes an item's number in the key of its job hash."""
        return f"{_RQ}:job:{self.run}-"

    @property
    def result_prefix(self) -> str:
        """What precedes an item's number in the key of its RQ result stream."""
        return f"{_RQ}:results:{self.run}-"

    @property
    def meta(self) -> str:
        return self._own("meta")

    @property
    def counts(self) -> str:
        return self._own("counts")

    @property
    def lease(self) -> str:
        return self._own("lease")

    @property
    def holder(self) -> str:
        return self._own("holder")

    @property
    def done(self) -> str:
        return self._own("done")

    @property
    def committed(self) -> str:
        return self._own("committed")

    @property
    def chunks(self) -> str:
        return self._own("chunks")

    @property
    def stream(self) -> str:
        return self._own("stream")

    @property
    def deliveries(self) -> str:
        return self._own("deliveries")

    @property
    def deaths(self) -> str:
        return self._own("deaths")

    @property
    def dead(self) -> str:
        return self._own("dead")

    @property
    def ghosts(self) -> str:
        return self._own("ghosts")

    @property
    def answers(self) -> str:
        return self._own("answers")

    @property
    def expired(self) -> str:
        return self._own("expired")

    @property
    def seen(self) -> str:
        return self._own("seen")

    @property
    def turns(self) -> str:
        return self._own("turns")

    @property
    def foreign(self) -> str:
        return self._own("foreign")

    @property
    def canary(self) -> str:
        return self._own("canary")

    @property
    def reference(self) -> str:
        return self._own("reference")

    @property
    def scratch(self) -> str:
        return self._own("scratch")

    @property
    def reap_lock(self) -> str:
        return self._own("reap")

    def script_keys(self) -> list[str]:
        """Return what every Lua script gets as KEYS, in the order in which _run.lua names them."""
        return [
            self.queue,
            self.intermediate,
            self.wip,
            self.scheduled,
            self.failed,
            self.finished,
            self.job_prefix,
            self.result_prefix,
            RQ_WORKER_PREFIX,
            RQ_QUEUES,
            RQ_SUSPENDED,
            self.meta,
            self.counts,
            self.lease,
            self.holder,
            self.done,
            self.committed,
            self.chunks,
            self.stream,
            self.deliveries,
            self.deaths,
            self.dead,
            self.ghosts,
            self.expired,
            self.answers,
            self.seen,
            self.foreign,
            self.turns,
            self.reap_lock,
            self.scratch,
            RUNS,
            STARTED,
            self.canary,
        ]


def worker_key(worker: WorkerName) -> str:
    """RQ's hash of one worker."""
    return f"{RQ_WORKER_PREFIX}{worker}"


def gauges_key(worker: WorkerName) -> str:
    """Hash of one consumer's figures for the status screen; expires with its heartbeat."""
    return f"{_OURS}:worker:{worker}"
