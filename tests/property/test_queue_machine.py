"""Any order of calls, late tokens, lost answers and RQ's own tools: the books balance.

The machine drives the real scripts on a real server, as producers, consumers, sinks, people and
stock workers do. What must hold after each step is in :mod:`tests.support.queue_books`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    precondition,
    rule,
    run_state_machine_as_test,
)
from rq.executions import Execution
from rq.job import Job
from rq.registry import FailedJobRegistry, clean_registries
from rq.serializers import JSONSerializer

from common.ids import Token, new_nonce
from common.queue.job import STOCK_LEASE_MS
from common.queue.prompts import FailOutcome, Outcome
from common.queue.scripts import Scripts, call_sync
from common.records import Failure, Finished, Verdict
from tests.support.queue_books import ITEMS, WORKERS, QueueBooks
from tests.support.queues import RUN, let_time_pass

workers = st.sampled_from(WORKERS)
counts = st.integers(1, 5)
picks = st.lists(st.integers(0, 10_000), min_size=1, max_size=4)


class QueueMachine(QueueBooks):
    # What producers and consumers do

    @rule(chunk=st.integers(0, 1))
    def enqueue(self, chunk):
        self.do(self.queue.enqueue(chunk))

    @rule(worker=workers, n=counts, again=st.booleans())
    def lease(self, worker, n, again):
        request = new_nonce()
        held = self.do(self.runs.get(RUN)).state == "held"
        leased = self.twice(lambda: self.queue.lease(worker, n, request=request), again=again)
        assert len({one.token for one in leased}) == len(leased) <= (0 if held else n)
        self.leases += [(worker, one.item, one.token) for one in leased]

    @rule(worker=workers)
    def lease_all(self, worker):
        for one in self.do(self.queue.lease(worker, 1000, request=new_nonce())):
            self.leases.append((worker, one.item, one.token))

    @rule(numbers=picks)
    def extend(self, numbers):
        for worker, item, token in self.pick(numbers):
            lost = self.do(self.queue.extend(worker, [(item, token)]))
            held = self.held(worker, item, token)
            assert lost == ([] if held else [item])

    @rule(
        numbers=picks,
        again=st.booleans(),
        foreign=st.booleans(),
        verdict=st.sampled_from([Verdict.OK, Verdict.TRUNCATED]),
    )
    def complete(self, numbers, again, foreign, verdict):
        batch = [
            Finished(item, Token("0" * 18) if foreign else token, verdict, b"x" * 50, 1, 2)
            for _, item, token in self.pick(numbers)
        ]
        self.bring(batch, again=again)

    def bring(self, batch, *, again=False):
        request = new_nonce()
        outcomes = self.twice(
            lambda: self.queue.complete(WORKERS[0], batch, request=request), again=again
        )
        for finished, outcome in zip(batch, outcomes, strict=True):
            if outcome is Outcome.FIRST:
                self.firsts[finished.item] = self.firsts.get(finished.item, 0) + 1
                self.tries.setdefault(finished.item, finished.verdict)

    @rule(numbers=picks, again=st.booleans())
    def release(self, numbers, again):
        for worker, item, token in self.pick(numbers):
            known = self.last.get((worker, "release")) == (item, token)
            held = self.held(worker, item, token)
            given = self.twice(
                lambda w=worker, h=[(item, token)]: self.queue.release(w, h), again=again
            )
            assert given == int(held or known)
            if held:
                self.last[worker, "release"] = (item, token)

    @rule(
        numbers=picks,
        again=st.booleans(),
        foreign=st.booleans(),
        verdict=st.sampled_from([Verdict.EMPTY, Verdict.BUSY, Verdict.ENGINE_DOWN]),
        charged=st.booleans(),
        final=st.booleans(),
        alone=st.booleans(),
    )
    def fail(self, *, numbers, again, foreign, verdict, charged, final, alone):
        died = verdict is Verdict.ENGINE_DOWN
        for worker, item, token in self.pick(numbers):
            failure = Failure(
                item,
                Token("f" * 18) if foreign else token,
                verdict,
                "a reason",
                charged,
                final=final and charged,
                engine_died=died,
                alone=alone,
            )
            self.end(worker, failure, again=again)

    def end(self, worker, failure, *, again=False):
        item = failure.item
        known = self.last.get((worker, "fail")) == (item, failure.token)
        held = self.held(worker, item, failure.token)
        outcomes = self.twice(lambda: self.queue.fail(worker, [failure]), again=again)
        assert (outcomes == [FailOutcome.STALE]) == (not held and not known)
        if held:
            self.last[worker, "fail"] = (item, failure.token)
            if failure.charged:
                self.tries.setdefault(item, failure.verdict)

    @rule(worker=workers, verdict=st.sampled_from([Verdict.EMPTY, Verdict.TRUNCATED]))
    def rows_go_wrong(self, worker, verdict):
        leased = self.do(self.queue.lease(worker, 6, request=new_nonce()))
        self.leases += [(worker, one.item, one.token) for one in leased]
        if verdict is Verdict.TRUNCATED:
            self.bring([Finished(one.item, one.token, verdict, b"x", 1, 2) for one in leased])
            return
        for one in leased:
            self.end(worker, Failure(one.item, one.token, verdict, "a reason", charged=True))

    @rule()
    def reap(self):
        while self.do(self.queue.reap()).more:
            pass

    @rule(seconds=st.sampled_from([6, 20, 61, 200, 600]))
    def time_passes(self, seconds):
        let_time_pass(self.sync, RUN, seconds)

    # What the sink does

    @rule(count=st.integers(1, 60), again=st.booleans())
    def commit(self, count, again):
        entries = self.do(self.stream.claim("other", idle_seconds=0, count=count))
        entries += self.do(self.stream.read("sink", count, block_ms=None))
        assert self.do(self.stream.commit(entries)) == len(entries)
        if again:
            assert self.do(self.stream.commit(entries)) == 0

    @rule()
    def reject(self):
        entries = self.do(self.stream.read("sink", 1, block_ms=None))
        for entry in entries:
            self.do(self.stream.reject(entry, Verdict.MALFORMED, "cannot be stored"))
            self.do(self.stream.reject(entry, Verdict.MALFORMED, "cannot be stored"))
            self.firsts[entry.item] -= 1

    @rule(worker=workers, stored=st.booleans())
    def a_result_comes_while_its_retry_waits_in_the_queue(self, worker, stored):
        leased = self.do(self.queue.lease(worker, 1, request=new_nonce()))
        self.leases += [(worker, one.item, one.token) for one in leased]
        for one in leased:
            self.end(worker, Failure(one.item, one.token, Verdict.EMPTY, "a reason", charged=True))
            let_time_pass(self.sync, RUN, 600)
            while self.do(self.queue.reap()).more:
                pass
            self.bring([Finished(one.item, one.token, Verdict.OK, b"late", 1, 2)])
        entries = self.do(self.stream.read("sink", 1000, block_ms=None))
        late = [entry for entry in entries if entry.item in {one.item for one in leased}]
        for entry in late if not stored else []:
            self.do(self.stream.reject(entry, Verdict.MALFORMED, "cannot be stored"))
            self.firsts[entry.item] -= 1

    # What people do with our commands and with RQ's

    @rule(by_rq=st.booleans())
    def requeue(self, by_rq):
        if not by_rq:
            self.do(self.runs.requeue(RUN))
            return
        registry = FailedJobRegistry(queue=self.rq)
        for dead in registry.get_job_ids()[:2]:
            registry.requeue(dead)

    @rule(pause_first=st.booleans())
    def go_on(self, pause_first):
        if pause_first:
            self.do(self.runs.pause(RUN))
            if self.do(self.runs.resume(RUN)) == "paused":
                return
        canary = self.do(self.runs.sample(RUN)).canary
        self.do(self.runs.accept(RUN))
        if canary.state == "held":
            self.accepted.add(canary.held_for)

    @rule()
    def rq_info(self):
        # RQ gives up by itself what a stock worker runs, or ran when it died.
        running = self.sync.zcount(self.keys.wip, "-inf", "(+inf")
        before = self.do(self.runs.sample(RUN))
        clean_registries(self.rq)
        after = self.do(self.runs.sample(RUN))
        if not running:
            assert (before.queued, before.leased, before.dead) == (
                after.queued,
                after.leased,
                after.dead,
            )

    @rule()
    def rq_empty_and_load_again(self):
        # A worker that has just taken an id is cut off from it: `rq empty` deletes its job.
        self.rq.empty()
        self.do(self.queue.enqueue(0))
        known = self.do(self.runs.open_items(RUN))
        missing = [k for k in range(ITEMS) if not known[k // 8] & (0x80 >> k % 8)]
        self.do(self.queue.enqueue_missing(missing))
        assert self.do(self.queue.enqueue_missing(range(ITEMS))) == 0

    @rule(steps=st.integers(0, 2))
    def cancel_and_load_again(self, steps):
        # Killed after some steps; the load that follows finishes it.
        scripts = Scripts(self.client, RUN, self.info.epoch)
        for _ in range(steps):
            self.do(scripts.call("cancel", 300))
        if not steps:
            self.do(self.runs.cancel(RUN))
        if self.sync.hget(self.keys.meta, "canary") == b"held":
            self.tries.clear()  # it watches anew
        self.do(self.runs.reopen(RUN))
        stored = self.sync.get(self.keys.committed) or b""
        self.do(self.runs.restore(RUN, self.info.epoch, committed=stored))
        if not self.sync.exists(self.keys.canary):
            self.tries.clear()  # nothing but what is committed was loaded: it watches anew, too
        self.do(self.queue.enqueue(0))

    # What a stock RQ worker does, step by step; it may die after each

    @rule()
    def stock_takes(self):
        job = self.sync.lmove(self.keys.queue, self.keys.intermediate, "LEFT", "RIGHT")
        if job:
            self.taken.append(job.decode())

    @precondition(lambda self: self.taken)
    @rule()
    def stock_starts(self):
        name = self.taken.pop()
        if not self.sync.lrem(self.keys.intermediate, 1, name):
            return  # swept meanwhile
        job = Job.fetch(name, connection=self.sync, serializer=JSONSerializer)
        with self.sync.pipeline() as pipe:
            execution = Execution.create(job, 90, pipeline=pipe, worker_name="stock")
            job.prepare_for_execution("stock", pipeline=pipe)
            pipe.execute()
        self.running.append((name, execution))

    @precondition(lambda self: self.running)
    @rule(ending=st.sampled_from(["adopt", "adopt", "die", "fail"]))
    def stock_ends(self, ending):
        name, execution = self.running.pop()
        if self.sync.zscore(self.keys.wip, execution.composite_key) is None or ending == "die":
            return
        job = Job.fetch(name, connection=self.sync, serializer=JSONSerializer)
        if ending == "adopt":
            token = f"{new_nonce()}00"
            call_sync(self.sync, RUN, "adopt", "rq-stock", token, STOCK_LEASE_MS, name)
        with self.sync.pipeline() as pipe:
            if ending == "adopt":
                job.ended_at = job.started_at
                job._status = "finished"
                job._handle_success(500, pipeline=pipe, worker_name="stock")
                job.cleanup(500, pipeline=pipe, remove_from_queue=False)
            else:
                job._handle_failure("a traceback", pipeline=pipe, worker_name="stock")
            execution.delete(job=job, pipeline=pipe)
            pipe.execute()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("runs", [25, pytest.param(150, marks=pytest.mark.faults)])
def test_any_order_of_calls_keeps_the_books(redis_url, runs):
    QueueMachine.url = redis_url
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )
