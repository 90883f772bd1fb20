"""The sink puts back what was leased and not answered, of each run for itself."""

from __future__ import annotations

import pytest
import redis
import structlog

from common.keys import RunKeys
from consumer.sink import service
from consumer.sink.service import SinkService
from tests.support.queues import let_time_pass
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab

SECONDS = 30


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(service, "REAP_SECONDS", 0.05)


def of_reaping(logs):
    return [one for one in logs if one["event"] == "sink.not_reaped"]


async def test_a_run_whose_queue_refuses_keeps_no_other_waiting_and_is_said_once(
    settings, redis_url
):
    bad = await load_job(settings, "bad", rows=1)
    await bad.runs.set_priority(bad.run, 5)  # it is tried first
    good = await load_job(settings, "good", rows=2)
    await good.lease(1)
    await good.queue.reap()
    with redis.Redis.from_url(redis_url, protocol=2) as sync:
        sync.hset(RunKeys(bad.run).reap_lock, "of another", "type")
        let_time_pass(sync, good.run, 100)
    async with local_lab(settings, good) as lab:
        with structlog.testing.capture_logs() as logs:
            lab.start(SinkService(lab.tools(), only=None, burst=False).serve())
            await eventually(lambda: is_queued(good, 2), SECONDS)
            await eventually(lambda: of_reaping(logs), SECONDS)
            await good.lease(2)
            with redis.Redis.from_url(redis_url, protocol=2) as sync:
                let_time_pass(sync, good.run, 100)
            await eventually(lambda: is_queued(good, 2), SECONDS)  # and round after round
    (said,) = of_reaping(logs)
    assert (said["run"], "WRONGTYPE" in said["why"]) == ("bad", True)
    assert said["fix"]
    await bad.redis.aclose()


async def is_queued(job, count):
    return (await job.counts()).queued == count
