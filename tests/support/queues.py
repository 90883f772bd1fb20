"""A queue with runs in it, for tests, and a way to let its time pass without waiting."""

from __future__ import annotations

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from common.audit import check_counts
from common.ids import WorkerName, new_nonce, run_name
from common.keys import STARTED, RunKeys
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.results import ResultStream
from common.queue.run_state import Runs
from common.records import Failure, Finished, RunManifest, RunSettings, Verdict

RUN = run_name("sixteen-letters0")
ONE, TWO = WorkerName("one"), WorkerName("two")


def manifest(items, *, run=RUN, attempts=3, fingerprint="f" * 64, model="model", **more):
    """A run of ``items`` items, as far as the queue cares."""
    settings = RunSettings(model=model, model_fingerprint="m", max_attempts=attempts, **more)
    return RunManifest(
        run=run,
        settings=settings,
        fingerprint=fingerprint,
        rows=items,
        shard_rows=1000,
        shards=[],
        created="2026-01-01T00:00:00Z",
        source="test",
        genq_version="0",
    )


def async_client(url):
    """As common.redis_client opens it: bytes, retries off."""
    return redis.asyncio.Redis.from_url(url, protocol=2, retry=Retry(NoBackoff(), 0))


def let_time_pass(client, run, seconds):
    """Move every deadline and every date of a run ``seconds`` into the past (blocking client)."""
    keys = RunKeys(run)
    zsets = {
        keys.lease: seconds * 1000,
        keys.scheduled: seconds,
        keys.finished: seconds,
        keys.wip: seconds,
    }
    for key, shift in zsets.items():
        members = client.zrange(key, 0, -1)
        for member in members:
            client.zincrby(key, -shift, member)
    client.hincrby(keys.meta, "since", -int(seconds * 1000))
    for job, since in client.hgetall(keys.seen).items():
        client.hset(keys.seen, job, int(since) - int(seconds * 1000))
    if client.hexists(STARTED, "since"):
        client.hincrby(STARTED, "since", -int(seconds * 1000))
    client.delete(keys.reap_lock)


def set_bits(bits):
    """The numbers of the bits that are set, the top bit of a byte first."""
    return [k for k in range(len(bits) * 8) if bits[k // 8] & (0x80 >> k % 8)]


def places(client, run):
    """Where each item is: item -> the places it is found in, ghosts left out."""
    keys = RunKeys(run)
    prefix = len(run) + 1
    ghosts = {int(n) for n in client.smembers(keys.ghosts)}
    queue = [int(job[prefix:]) for job in client.lrange(keys.queue, 0, -1)]
    for ghost in ghosts & set(queue):
        queue.remove(ghost)
    where = {
        "queued": queue,
        "taking": [job[prefix:] for job in client.lrange(keys.intermediate, 0, -1)],
        "leased": client.zrange(keys.lease, 0, -1),
        "waiting": [job[prefix:] for job in client.zrange(keys.scheduled, 0, -1)],
        "dead": [job[prefix:] for job in client.zrange(keys.failed, 0, -1)],
        "generated": [fields[b"n"] for _, fields in client.xrange(keys.stream)],
        "committed": set_bits(client.get(keys.committed) or b""),
    }
    found = {}
    for place, items in where.items():
        for item in items:
            found.setdefault(int(item), []).append(place)
    return found


class QueueBench:
    """A run, with the hands of two consumers and of a sink on it."""

    def __init__(self, url, limits=None):
        self.sync = redis.Redis.from_url(url, protocol=2)
        self.client = async_client(url)
        self.limits = limits or QueueLimits()
        self.runs = Runs(self.client, self.limits)

    async def load(self, items=20, *, limits=None, attempts=3, **settings):
        limits = limits or self.limits
        info = await self.runs.create(manifest(items, attempts=attempts, **settings))
        self.queue = PromptQueue(self.client, RUN, info.epoch, limits)
        self.stream = ResultStream(self.client, RUN, info.epoch, limits)
        for chunk in range(-(-items // 1000)):
            await self.queue.enqueue(chunk)
        await self.runs.open(RUN)
        await self.calm()
        return info

    async def calm(self):
        """Let the time go by in which leases do not expire after a start."""
        await self.queue.reap()
        let_time_pass(self.sync, RUN, self.limits.lease_seconds + 1)

    async def lease(self, n=1, worker=ONE):
        return await self.queue.lease(worker, n, request=new_nonce())

    async def complete(self, leased, worker=ONE):
        batch = [Finished(one.item, one.token, Verdict.OK, b"text", 1, 1) for one in leased]
        return await self.queue.complete(worker, batch, request=new_nonce())

    async def fail(self, leased, verdict=Verdict.EMPTY, worker=ONE, *, charged=True, **more):
        return await self.queue.fail(
            worker,
            [Failure(one.item, one.token, verdict, "why", charged, **more) for one in leased],
        )

    async def expire(self):
        let_time_pass(self.sync, RUN, self.limits.lease_seconds + 1)
        return await self.queue.reap()

    async def commit_all(self):
        return await self.stream.commit(await self.stream.read("sink", 1000, block_ms=None))

    async def counts(self):
        counts = await self.runs.sample(RUN)
        assert check_counts(counts) == []
        return counts
