"""A stock RQ worker beside a run that is cancelled, or loaded again, under its hands."""

from __future__ import annotations

import pytest
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from common.ids import new_nonce
from common.keys import RunKeys
from common.queue.job import STOCK_LEASE_MS
from common.queue.scripts import call_sync
from tests.support.queues import RUN

KEYS = RunKeys(RUN)
pytestmark = pytest.mark.row("D2")


class StockWorker:
    """What a stock worker does with the next id of the queue, step by step."""

    def __init__(self, bench):
        self.sync = bench.sync
        name = self.sync.lmove(KEYS.queue, KEYS.intermediate, "LEFT", "RIGHT").decode()
        self.job = Job.fetch(name, connection=self.sync, serializer=JSONSerializer)

    def start(self):
        with self.sync.pipeline() as pipe:
            pipe.lrem(KEYS.intermediate, 1, self.job.id)
            self.execution = Execution.create(self.job, 90, pipeline=pipe, worker_name="stock")
            self.job.prepare_for_execution("stock", pipeline=pipe)
            pipe.execute()

    def end(self):
        """Return what our function is answered; RQ notes that it went well."""
        given = ("adopt", "rq-stock", f"{new_nonce()}00", STOCK_LEASE_MS, self.job.id)
        answer = call_sync(self.sync, RUN, *given)
        with self.sync.pipeline() as pipe:
            self.job.ended_at = self.job.started_at
            self.job._status = JobStatus.FINISHED
            self.job._handle_success(500, pipeline=pipe, worker_name="stock")
            self.job.cleanup(500, pipeline=pipe, remove_from_queue=False)
            self.execution.delete(job=self.job, pipeline=pipe)
            pipe.execute()
        return answer.decode()


async def load_again(bench):
    await bench.runs.reopen(RUN)
    assert await bench.queue.enqueue(0) == 20
    assert (await bench.counts()).queued == 20


async def test_what_a_stock_worker_runs_is_taken_out_of_a_cancelled_run(bench):
    await bench.load()
    worker = StockWorker(bench)
    worker.start()
    assert (await bench.counts()).leased == 1
    await bench.runs.cancel(RUN)
    assert (await bench.counts()).open == 0
    assert worker.end() == "cancelled"
    assert (await bench.counts()).open == 0
    await load_again(bench)


async def test_a_stock_worker_that_starts_in_a_cancelled_run_leaves_nothing_open(bench):
    await bench.load()
    worker = StockWorker(bench)
    await bench.runs.cancel(RUN)
    worker.start()
    assert (await bench.counts()).open == 0
    assert worker.end() == "cancelled"
    assert (await bench.counts()).open == 0
    await load_again(bench)


async def test_a_stock_worker_gives_nothing_back_that_was_loaded_again_meanwhile(bench):
    await bench.load()
    worker = StockWorker(bench)
    worker.start()
    await bench.runs.cancel(RUN)
    await load_again(bench)
    assert worker.end() == "queued"
    counts = await bench.counts()
    assert (counts.queued, counts.leased) == (20, 0)
    assert sorted(one.item for one in await bench.lease(30)) == list(range(20))
