"""A data set, the run that it is loaded as, and looks at that run in Redis."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import redis
import redis.asyncio

from common.audit import check_counts
from common.ids import WorkerName, new_nonce
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.run_state import Runs
from common.records import Finished, Verdict

RUN = "rows"
LOAD = ("load", "--model", "m", "--run", RUN)


def write(path, count, change=None):
    lines = [{"prompt": f"prompt {n}", "id": f"id-{n}"} for n in range(count)]
    if change is not None:
        lines[change]["prompt"] += " and more"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@asynccontextmanager
async def queue(redis_url):
    """The run as a consumer and a sink see it."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        runs = Runs(client, QueueLimits())
        info = await runs.get(RUN)
        yield runs, info, PromptQueue(client, RUN, info.epoch, QueueLimits()) if info else None


def counts(redis_url):
    async def ask():
        async with queue(redis_url) as (runs, _, _queue):
            return await runs.sample(RUN)

    return asyncio.run(ask())


def assert_whole(redis_url, items=2500):
    found = counts(redis_url)
    assert check_counts(found) == []
    assert (found.state, found.loaded, found.queued + found.committed) == ("open", items, items)


def queued_ids(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        return sorted(
            int(job.rpartition(b"-")[2]) for job in client.lrange(f"rq:queue:{RUN}", 0, -1)
        )


def work(redis_url, n):
    """Lease and complete ``n`` items, without a sink; return the items."""

    async def go():
        async with queue(redis_url) as (_, _, items):
            worker = WorkerName("w")
            leased = await items.lease(worker, n, request=new_nonce())
            for start in range(0, n, 32):
                batch = [
                    Finished(one.item, one.token, Verdict.OK, b"x", 1, 1)
                    for one in leased[start : start + 32]
                ]
                await items.complete(worker, batch, request=new_nonce())
            return [one.item for one in leased]

    return asyncio.run(go())
