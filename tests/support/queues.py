"""A queue with runs in it, for tests, and a way to let its time pass without waiting."""

from __future__ import annotations

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from common.ids import run_name
from common.keys import STARTED, RunKeys
from common.records import RunManifest, RunSettings

RUN = run_name("sixteen-letters0")


def manifest(items, *, run=RUN, attempts=3, fingerprint="f" * 64, model="model"):
    """A run of ``items`` items, as far as the queue cares."""
    settings = RunSettings(model=model, model_fingerprint="m", max_attempts=attempts)
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
