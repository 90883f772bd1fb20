"""What a machine over the real queue did to a run, and what must hold of it after each step.

It keeps no model of the queue: the audit must find nothing, each loaded item must be in exactly one
place, no item may have had two results taken, and RQ's own counts must agree. The canary must have
counted the first tries of the first items, and must hold the run exactly where they are bad, never
twice for one reason.
"""

from __future__ import annotations

import asyncio
import math

import redis
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
)
from rq import Queue
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer

from common.audit import check_counts
from common.ids import WorkerName, job_id
from common.keys import RunKeys
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.results import ResultStream
from common.queue.run_state import Runs
from tests.support.queues import RUN, async_client, manifest, places

ITEMS = 1040  # a full chunk and a part of one; deep enough for ghosts
LIMITS = QueueLimits(
    lease_seconds=60, stream_entries=60, max_deliveries=4, retry_base_seconds=5, max_deaths=5
)
CANARY = {"canary_rows": 16, "canary_faults": 0.35, "canary_truncated": 0.5}
WORKERS = [WorkerName("w0"), WorkerName("w1")]


def need(reason, rows):
    return max(5, math.ceil(CANARY[f"canary_{reason}"] * rows))


class QueueBooks(RuleBasedStateMachine):
    """The hands of a machine on one run, its notes, and the checks; what it does comes on top."""

    url = ""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.sync = redis.Redis.from_url(self.url, protocol=2)
        self.sync.flushdb()
        self.client = async_client(self.url)
        self.runs = Runs(self.client, LIMITS)
        self.keys = RunKeys(RUN)
        self.rq = Queue(RUN, connection=self.sync, serializer=JSONSerializer)
        self.leases = []  # (worker, item, token) of every delivery ever, the latest last
        self.last = {}  # (worker, call) -> what its last call that changed something was about
        self.firsts = {}  # item -> how many results were taken
        self.tries = {}  # item -> class of its first finished try, since the canary began
        self.accepted = set()  # what the run may not be held for any more
        self.taken = []  # job ids that a stock worker has taken
        self.running = []  # (job id, execution) that a stock worker runs

    def do(self, call):
        return self.loop.run_until_complete(call)

    def twice(self, make, *, again):
        """Call; where ``again``, as if the answer had been lost: the repeat answers the same."""
        first = self.do(make())
        if again:
            assert self.do(make()) == first
        return first

    @initialize()
    def create(self):
        info = self.do(self.runs.create(manifest(ITEMS, **CANARY)))
        self.info = info
        self.queue = PromptQueue(self.client, RUN, info.epoch, LIMITS)
        self.stream = ResultStream(self.client, RUN, info.epoch, LIMITS)
        self.do(self.queue.enqueue(0))

    def teardown(self):
        self.do(self.client.aclose())
        self.sync.close()
        self.loop.close()

    def held(self, worker, item, token):
        return self.sync.hget(self.keys.holder, item) == f"{token} {worker}".encode()

    def pick(self, numbers):
        """Deliveries, old and current, each item once."""
        chosen = {}
        for number in numbers if self.leases else []:
            worker, item, token = self.leases[-1 - number % len(self.leases)]
            chosen.setdefault(item, (worker, item, token))
        return list(chosen.values())

    # What must hold after every step

    @invariant()
    def the_audit_finds_nothing(self):
        if hasattr(self, "info"):
            counts = self.do(self.runs.sample(RUN))
            assert check_counts(counts) == []
            self.rq_agrees(counts)
            self.canary_agrees(counts)

    def rq_agrees(self, counts):
        # Ids of answered items that are too deep to be looked for still count for RQ.
        assert self.rq.count + counts.taking == counts.queued + counts.ghosts
        started = StartedJobRegistry(queue=self.rq).get_job_count(cleanup=False)
        assert started == counts.leased or self.running or self.taken
        assert FailedJobRegistry(queue=self.rq).get_job_count(cleanup=False) == counts.dead

    def canary_agrees(self, counts):
        canary, watched = counts.canary, self.do(self.runs.watched(RUN))
        assert canary.finished == sum(canary.classes.values()) <= canary.rows <= 16
        assert (counts.state == "held") == (canary.state == "held")
        assert set(canary.accepted) == self.accepted
        if canary.state == "passed":
            assert canary.finished == canary.rows
            return
        finished = {item: name for item, name in watched.items() if name}
        assert len(finished) == canary.finished
        assert len(watched) <= canary.rows
        assert finished == {item: name for item, name in self.tries.items() if item in watched}
        bad = {
            "faults": canary.finished - canary.classes.get("ok", 0) - self.kept(canary),
            "truncated": self.kept(canary),
        }
        assert bad["faults"] == canary.faults
        if canary.state == "held":
            assert canary.held_for not in self.accepted
            assert bad[canary.held_for] >= need(canary.held_for, canary.rows)
        else:
            open_reasons = set(bad) - self.accepted
            assert all(bad[why] < need(why, canary.rows) for why in open_reasons)

    def kept(self, canary):
        return canary.classes.get("truncated", 0)

    @invariant()
    def each_item_is_in_one_place(self):
        if not hasattr(self, "info"):
            return
        found = places(self.sync, RUN)
        doubled = {item: where for item, where in found.items() if len(where) > 1}
        assert doubled == {}
        executing = {
            member.decode().partition(":")[0]
            for member, score in self.sync.zrange(self.keys.wip, 0, -1, withscores=True)
            if score != float("inf")
        }
        loaded = ITEMS if self.sync.getbit(self.keys.chunks, 1) else 1000
        lost = [k for k in range(loaded) if k not in found and job_id(RUN, k) not in executing]
        assert lost == []

    @invariant()
    def no_item_has_two_results(self):
        assert all(taken <= 1 for taken in self.firsts.values())
