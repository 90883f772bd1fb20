"""RQ's own tools on our keys: they see what is true, they steer, and nothing is lost."""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
import redis
from flask import Flask
from rq import Queue
from rq.job import Job, JobStatus
from rq.registry import ScheduledJobRegistry
from rq.serializers import JSONSerializer
from rq_dashboard import default_settings
from rq_dashboard.web import blueprint, config, setup_rq_connection

from common.audit import check_counts
from common.ids import WorkerName, job_id, new_nonce
from common.keys import RunKeys
from common.queue import run
from common.queue.job import STOCK_LEASE_MS
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.results import ResultStream
from common.queue.run_state import Runs
from common.records import Failure, Finished, Verdict
from tests.support import forge
from tests.support.queues import RUN, async_client, let_time_pass, manifest

ROOT = Path(__file__).resolve().parents[2]
LIMITS = QueueLimits(lease_seconds=60)
WORKER = WorkerName("consumer-1")
KEYS = RunKeys(RUN)


class Bench:
    """A loaded run, with a consumer's and a sink's hands on it."""

    def __init__(self, url):
        self.url = url
        self.sync = redis.Redis.from_url(url, protocol=2)
        self.client = async_client(url)
        self.runs = Runs(self.client, LIMITS)

    async def load(self, items=20):
        info = await self.runs.create(manifest(items))
        self.queue = PromptQueue(self.client, RUN, info.epoch, LIMITS)
        self.stream = ResultStream(self.client, RUN, info.epoch, LIMITS)
        await self.queue.enqueue(0)
        await self.runs.open(RUN)

    async def lease(self, n=1):
        return await self.queue.lease(WORKER, n, request=new_nonce())

    async def complete(self, leased):
        batch = [Finished(one.item, one.token, Verdict.OK, b"text", 1, 1) for one in leased]
        return await self.queue.complete(WORKER, batch, request=new_nonce())

    async def fail(self, leased, *, final=False):
        return await self.queue.fail(
            WORKER,
            [
                Failure(
                    one.item,
                    one.token,
                    Verdict.EMPTY,
                    "nothing was said",
                    charged=True,
                    final=final,
                )
                for one in leased
            ],
        )

    async def counts(self):
        counts = await self.runs.sample(RUN)
        assert check_counts(counts) == []
        return counts

    def job(self, item):
        return Job.fetch(job_id(RUN, item), connection=self.sync, serializer=JSONSerializer)

    def rq(self, *args, check=True):
        """Run RQ's own command."""
        command = ["rq", *args, "--url", self.url]
        done = forge.run(command, capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def rq_loop(self, *args):
        """Run `rq info` in a loop; give the lines that it shows, of any number of rounds."""
        command = ["rq", "info", *args, "--interval", "0.05", "--url", self.url]
        with forge.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield iter(process.stdout.readline, "")
            finally:
                process.kill()

    def rq_info(self):
        """What `rq info` counts: queued, executing, finished, failed."""
        line = next(
            line for line in self.rq("info", "--raw").splitlines() if line.startswith("queue")
        )
        numbers = re.fullmatch(
            rf"queue {RUN} (\d+), (\d+) executing, (\d+) finished, (\d+) failed", line
        )
        return tuple(int(number) for number in numbers.groups())

    def snapshot(self):
        """All that Redis holds, with times to live rounded to what one test may take."""
        return {
            key: (self.sync.dump(key), self.sync.ttl(key) >= 0)
            for key in self.sync.scan_iter(count=1000)
        }


@pytest.fixture
async def bench(redis_url):
    bench = Bench(redis_url)
    yield bench
    bench.sync.close()
    await bench.client.aclose()


async def test_rq_reads_our_jobs_in_every_state(bench):
    await bench.load()
    job = bench.job(7)
    assert (job.get_status(), job.origin, job.func_name) == (
        JobStatus.QUEUED,
        RUN,
        f"{run.__module__}.{run.__qualname__}",
    )
    assert (job.args, job.kwargs) == ([], {})
    assert bench.job(0).get_position() == 0

    first, second, third, fourth = await bench.lease(4)
    job = bench.job(first.item)
    assert (job.get_status(), job.worker_name) == (JobStatus.STARTED, WORKER)
    server_now = float(bench.sync.time()[0])
    assert abs(job.started_at.timestamp() - server_now) < 60

    await bench.complete([first])
    job = bench.job(first.item)
    assert (job.get_status(), bench.sync.ttl(job.key)) == (JobStatus.FINISHED, 500)
    assert job.started_at <= job.ended_at

    await bench.fail([second])
    job = bench.job(second.item)
    assert (job.get_status(), job.retries_left) == (JobStatus.SCHEDULED, 2)
    assert job.latest_result().exc_string == "nothing was said"

    await bench.fail([third], final=True)
    job = bench.job(third.item)
    assert (job.get_status(), job.retries_left) == (JobStatus.FAILED, 2)  # of three
    assert job.latest_result().exc_string == "nothing was said"
    assert job.latest_result().worker_name == WORKER
    assert bench.sync.ttl(job.key) == -1

    await bench.queue.release(WORKER, [(fourth.item, fourth.token)])
    assert bench.job(fourth.item).get_status() == JobStatus.QUEUED
    assert len(bench.sync.hkeys(job.key)) < 8


async def test_one_item_goes_through_fail_scheduled_and_ok_in_rq_info(bench):
    await bench.load(items=1)
    assert bench.rq_info() == (1, 0, 0, 0)
    leased = await bench.lease()
    assert bench.rq_info() == (0, 1, 0, 0)

    await bench.fail(leased)
    scheduled = ScheduledJobRegistry(queue=Queue(RUN, connection=bench.sync))
    assert (bench.rq_info(), scheduled.get_job_ids()) == ((0, 0, 0, 0), [job_id(RUN, 0)])
    let_time_pass(bench.sync, RUN, 300)
    assert (await bench.queue.reap()).promoted == 1
    assert bench.rq_info() == (1, 0, 0, 0)

    await bench.fail(await bench.lease(), final=True)
    assert bench.rq_info() == (0, 0, 0, 1)
    await bench.runs.requeue(RUN)

    await bench.complete(await bench.lease())
    assert bench.rq_info() == (0, 0, 1, 0)
    assert await bench.stream.commit(await bench.stream.read("sink", 9, block_ms=None)) == 1
    assert bench.rq_info() == (0, 0, 1, 0)
    assert await bench.runs.close(RUN)


@pytest.mark.row("D1")
@pytest.mark.parametrize(
    "flags", [[], ["-R"], ["-r"], ["-Q"], ["-W"], ["-Q", "-r"], ["-W", "-R"], [RUN]], ids=" ".join
)
async def test_rq_info_changes_nothing(bench, flags):
    await bench.load()
    leased = await bench.lease(8)
    await bench.complete(leased[:2])
    await bench.fail(leased[2:4])
    await bench.fail(leased[4:5], final=True)
    # Leases that have expired, but for the clock of RQ's window of finished jobs.
    bench.sync.zadd(KEYS.lease, {leased[6].item: 1, leased[7].item: 1})
    before = bench.snapshot()
    counts = await bench.counts()
    lines = len(bench.rq("info", *flags).splitlines())
    assert bench.snapshot() == before
    with bench.rq_loop(*flags) as shown:
        assert len(list(islice(shown, lines * 3))) == lines * 3 > 0
    assert bench.snapshot() == before
    assert bench.rq_info() == (counts.queued, counts.leased, 2, counts.dead)


@pytest.mark.row("D1")
async def test_rq_info_in_a_loop_follows_a_run_to_its_end(bench):
    """Each count is true when it is shown, and what it looks at goes on as without it."""
    await bench.load()
    with bench.rq_loop("--raw") as shown:
        for done in range(0, 20, 5):
            leased = await bench.lease(5)
            line = f"queue {RUN} {15 - done}, {{}} executing, {{}} finished, 0 failed\n"
            assert line.format(5, done) in islice(shown, 1000)
            await bench.complete(leased)
            assert line.format(0, done + 5) in islice(shown, 1000)
    assert await bench.stream.commit(await bench.stream.read("sink", 20, block_ms=None)) == 20
    assert (await bench.counts()).wasted_tokens == 0
    assert await bench.runs.close(RUN)


@pytest.mark.row("D3")
async def test_rq_requeue_gives_a_fresh_budget(bench):
    await bench.load()
    dead = await bench.lease(3)
    await bench.fail(dead, final=True)
    bench.rq("requeue", "--queue", RUN, job_id(RUN, dead[0].item))
    assert (await bench.counts()).dead == 2
    bench.rq("requeue", "--queue", RUN, "--all")
    counts = await bench.counts()
    assert (counts.dead, counts.queued) == (0, 20)
    again = {one.item: one for one in await bench.lease(20)}
    assert [again[one.item].attempt for one in dead] == [1, 1, 1]
    assert await bench.runs.failures_by_class(RUN) == {}


@pytest.mark.row("D3")
async def test_a_requeue_that_was_cut_off_between_its_two_steps_is_undone(bench):
    await bench.load()
    dead = await bench.lease(3)
    await bench.fail(dead, final=True)
    await bench.queue.reap()
    let_time_pass(bench.sync, RUN, 61)  # past the calm after a start
    bench.sync.zrem(KEYS.failed, job_id(RUN, dead[0].item))  # RQ's first step
    await bench.queue.reap()
    let_time_pass(bench.sync, RUN, 11)
    await bench.queue.reap()
    assert (await bench.counts()).dead == 3
    assert {failure.item for failure in await bench.runs.failures(RUN, limit=9)} == {
        one.item for one in dead
    }
    bench.rq("requeue", "--queue", RUN, "--all")
    let_time_pass(bench.sync, RUN, 11)
    await bench.queue.reap()
    assert (await bench.counts()).dead == 0


@pytest.mark.row("D3")
async def test_rq_suspend_pauses_and_resume_goes_on(bench):
    await bench.load()
    bench.rq("suspend")
    assert await bench.runs.suspended()
    assert await bench.lease() == []
    bench.rq("resume")
    assert len(await bench.lease()) == 1


@pytest.mark.row("D3")
async def test_what_rq_empty_took_is_put_back(bench):
    await bench.load()
    held = await bench.lease(3)
    bench.rq("empty", RUN)
    assert check_counts(await bench.runs.sample(RUN)) != []
    known = await bench.runs.open_items(RUN)
    missing = [k for k in range(20) if not known[k // 8] & (0x80 >> k % 8)]
    assert missing == list(range(3, 20))
    assert await bench.queue.enqueue_missing(missing) == 17
    assert await bench.queue.enqueue_missing(range(20)) == 0
    assert (await bench.counts()).leased == len(held)
    assert bench.job(10).get_status() == JobStatus.QUEUED


@pytest.mark.row("D2")
async def test_a_stock_worker_gives_back_what_it_takes(bench):
    await bench.load()
    text = bench.rq("worker", "-S", "json", "--burst", "--max-jobs", "3", RUN)
    assert "Job OK" in text
    assert "Stop this worker and start gen-consumer" in text
    counts = await bench.counts()
    assert (counts.queued, counts.leased) == (17, 3)
    assert bench.sync.ttl(bench.job(0).key) > 0  # as RQ leaves a finished job

    let_time_pass(bench.sync, RUN, LIMITS.lease_seconds)
    await bench.queue.reap()  # the first visit after a start lets leases live for a while
    let_time_pass(bench.sync, RUN, LIMITS.lease_seconds + STOCK_LEASE_MS / 1000)
    assert (await bench.queue.reap()).expired == 3
    assert (await bench.counts()).queued == 20
    assert bench.rq_info() == (20, 0, 0, 0)
    assert bench.sync.ttl(bench.job(0).key) == -1
    leased = await bench.lease(20)
    assert sorted(one.item for one in leased) == list(range(20))
    assert {one.delivery for one in leased} == {1}


@pytest.mark.row("D2")
async def test_a_stock_worker_of_several_queues_gives_back_what_it_takes(bench):
    await bench.load()
    bench.rq("worker", "-S", "json", "--burst", "--max-jobs", "2", "another", RUN)
    counts = await bench.counts()
    assert (counts.queued, counts.leased) == (18, 2)


@pytest.mark.row("D2")
async def test_a_stock_worker_that_cannot_read_our_jobs_loses_none(bench):
    await bench.load()
    bench.rq("worker", "--burst", "--max-jobs", "2", RUN)  # RQ's default is pickle
    counts = await bench.counts()
    assert (counts.queued, counts.dead) == (18, 2)
    await bench.queue.reap()
    let_time_pass(bench.sync, RUN, LIMITS.lease_seconds + 1)
    assert (await bench.queue.reap()).swept == 2
    assert (await bench.counts()).queued == 20
    assert {one.delivery for one in await bench.lease(20)} == {1, 2}


@pytest.fixture
def dashboard(bench):
    app = Flask("dashboard")
    app.config.from_object(default_settings)
    app.config["RQ_DASHBOARD_REDIS_URL"] = bench.url
    config.serializer = JSONSerializer
    setup_rq_connection(app)
    app.register_blueprint(blueprint)
    return app.test_client()


@pytest.mark.row("D4")
async def test_rq_dashboard_shows_our_jobs_and_changes_nothing(bench, dashboard):
    await bench.load()
    leased = await bench.lease(4)
    await bench.complete(leased[:1])
    await bench.fail(leased[1:2], final=True)
    await bench.fail(leased[2:3])
    before = bench.snapshot()
    page = dashboard.get(f"/0/data/job/{job_id(RUN, leased[1].item)}.json").get_json()
    assert (page["status"], page["exc_info"]) == ("failed", "nothing was said")
    for registry, expected in {
        "queued": 16,
        "started": 1,
        "failed": 1,
        "finished": 1,
        "scheduled": 1,
    }.items():
        url = f"/0/data/jobs/{RUN}/{registry}/8/asc/1.json"
        rows = dashboard.get(url).get_json()["jobs"]
        assert len(rows) == min(expected, 8), registry
    queues = dashboard.get("/0/data/queues.json").get_json()["queues"]
    assert [(q["name"], q["count"]) for q in queues] == [(RUN, 16)]
    assert bench.snapshot() == before
