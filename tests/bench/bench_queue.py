"""The queue against RQ's own bulk enqueue, and its calls at two depths: `make bench-queue`.

Everything runs on one server, in one process, one after the other: first RQ, then ours. The bars
hold for AOF everysec; `always` is printed beside. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from dataclasses import dataclass

import psutil
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from common.ids import Item, WorkerName, new_nonce, run_name
from common.queue.prompts import CHUNK_ITEMS, PromptQueue, QueueLimits
from common.queue.results import ResultStream
from common.queue.run_state import Runs
from common.records import Finished, Verdict
from common.settings import load_settings
from producer.status.data import Watcher
from tests.support import servers
from tests.support.queues import async_client, manifest

RUN = run_name("bench-sixteen-ch")
RQ_RUN = "bench-for-rq-own"
assert len(RUN) == len(RQ_RUN) == 16
WORKER = WorkerName("bench")
LIMITS = QueueLimits(stream_entries=10**9, stream_bytes=2**40)

BAR_RATE = 15.0  # times enqueue_many's jobs per second
BAR_BYTES = 0.4  # of enqueue_many's bytes a job
BAR_ITEM_MS = 0.3  # lease + complete of one item
BAR_DEPTH = 2.0  # the time at the greater depth over that at the smaller
BAR_LOOK_MS = 50.0  # of the server's own time for a frame of `status`
LOOKS = 10

RQ_JOBS = 20_000
OUR_JOBS = 400_000
SIZE_JOBS = 100_000  # of each, where bytes are compared: equal ids, equally full tables
DEPTHS = (10_000, 1_000_000)
BATCH = 16
BATCHES = 15  # a round
RESULT = os.urandom(10_000)
CALLS_IN_FLIGHT = 4
RATE_ROUNDS = 3  # the median counts
CALL_ROUNDS = 30  # the fastest counts: others' work on the machine is not the queue's


@dataclass(frozen=True)
class Cost:
    """What a number of jobs took."""

    jobs: int
    wall: float
    client: float
    server: float
    size: int

    @property
    def rate(self):
        return self.jobs / self.wall

    def line(self, name):
        client, server = (seconds / self.jobs * 1e6 for seconds in (self.client, self.server))
        return (
            f"  {name:<16} {self.rate:>9,.0f} jobs/s   CPU a job: client {client:6.2f} us,"
            f" server {server:6.2f} us"
        )


class Meter:
    """Wall clock, CPU of this process and of the server, and the server's memory."""

    def __init__(self, client):
        self.client = client
        self.process = psutil.Process(client.info("server")["process_id"])

    def read(self):
        mine = resource.getrusage(resource.RUSAGE_SELF)
        server = self.process.cpu_times()
        memory = int(self.client.info("memory")["used_memory"])
        cpu = (mine.ru_utime + mine.ru_stime, server.user + server.system)
        return (time.perf_counter(), *cpu, memory)

    def cost(self, jobs, before):
        return Cost(jobs, *(b - a for a, b in zip(before, self.read(), strict=True)))

    def empty(self):
        self.client.flushall(asynchronous=False)
        memory = self.client.info
        servers.eventually_sync(lambda: memory("memory")["lazyfree_pending_objects"] == 0)


def enqueue_rq(meter, jobs):
    """RQ's enqueue_many, 1,000 a call, with ids of the same length as ours."""
    meter.empty()
    queue = Queue(RQ_RUN, connection=meter.client, serializer=JSONSerializer)
    data = [
        Queue.prepare_data("common.queue.run", job_id=f"{RQ_RUN}-{item}") for item in range(jobs)
    ]
    before = meter.read()
    for start in range(0, jobs, CHUNK_ITEMS):
        queue.enqueue_many(data[start : start + CHUNK_ITEMS])
    return meter.cost(jobs, before)


async def enqueue_ours(client, meter, jobs):
    meter.empty()
    info = await Runs(client, LIMITS).create(manifest(jobs, run=RUN))
    queue = PromptQueue(client, RUN, info.epoch, LIMITS)
    chunks = iter(range(-(-jobs // CHUNK_ITEMS)))

    async def work():
        for chunk in chunks:
            await queue.enqueue(chunk)

    before = meter.read()
    await asyncio.gather(*(work() for _ in range(CALLS_IN_FLIGHT)))
    return meter.cost(jobs, before), queue


async def lease_and_complete(client, queue):
    """Milliseconds an item for lease and for complete, in batches of 16."""
    lease = complete = 0.0
    stream = ResultStream(client, RUN, queue.epoch, LIMITS)
    for _ in range(BATCHES):
        start = time.perf_counter()
        leased = await queue.lease(WORKER, BATCH, request=new_nonce())
        middle = time.perf_counter()
        batch = [Finished(one.item, one.token, Verdict.OK, RESULT, 100, 1000) for one in leased]
        await queue.complete(WORKER, batch, request=new_nonce())
        complete += time.perf_counter() - middle
        lease += middle - start
        assert len(leased) == BATCH
        await stream.commit(await stream.read("bench", BATCH, block_ms=None))
    items_per_ms = BATCHES * BATCH / 1e3
    return lease / items_per_ms, complete / items_per_ms


async def rates(client, meter, scale):
    """Both enqueues in turns; prints the median round by ratio, and returns its ratio."""
    rounds = []
    for _ in range(RATE_ROUNDS):
        rq = enqueue_rq(meter, int(RQ_JOBS * scale))
        ours, _ = await enqueue_ours(client, meter, int(OUR_JOBS * scale))
        rounds.append((ours.rate / rq.rate, rq, ours))
    ratio, rq, ours = sorted(rounds, key=lambda one: one[0])[RATE_ROUNDS // 2]
    print(rq.line("rq enqueue_many"))
    print(ours.line("genq enqueue"))
    print(f"  {ratio:.1f} times the rate")
    return ratio


async def sizes(client, meter, scale):
    """Our bytes a job as a share of RQ's."""
    jobs = int(SIZE_JOBS * scale)
    rq = enqueue_rq(meter, jobs).size / jobs
    ours = (await enqueue_ours(client, meter, jobs))[0].size / jobs
    print(f"bytes a job: rq {rq:.1f}, genq {ours:.1f}: {ours / rq:.3f}")
    return ours / rq


async def at_depths(client, meter, scale):
    """Times of lease and of complete by depth."""
    found = {}
    for depth in DEPTHS:
        items = int(depth * scale) + BATCH * BATCHES * (CALL_ROUNDS + 1)
        _, queue = await enqueue_ours(client, meter, items)
        await lease_and_complete(client, queue)  # warms up
        rounds = [await lease_and_complete(client, queue) for _ in range(CALL_ROUNDS)]
        lease, complete = found[depth] = tuple(map(min, zip(*rounds, strict=True)))
        print(
            f"  depth {depth:>9,}   lease {lease:.3f} ms, complete {complete:.3f} ms,"
            f" both {lease + complete:.3f} ms an item"
        )
    return found


async def looks(client, meter, depth):
    """Milliseconds of server time for one frame of `status`, and for one of `trace`."""
    runs = Runs(client, LIMITS)
    settings = load_settings(redis_url="redis://is-not-opened", store="")

    async def cost(look):
        await look()  # sends the scripts
        before = _busy_us(meter.client)
        for _ in range(LOOKS):
            await look()
        return (_busy_us(meter.client) - before) / LOOKS / 1000

    frame = await cost(lambda: Watcher(client, settings).look(RUN))
    trace = await cost(lambda: runs.trace(RUN, Item(depth // 2)))
    print(f"  at {depth:,} items: a frame of status {frame:.2f} ms, a trace {trace:.2f} ms")
    return max(frame, trace)


def _busy_us(client):
    """Microseconds that the server has spent in commands; those inside scripts are in these."""
    stats = client.info("commandstats")
    scripts = sum(one["usec"] for name, one in stats.items() if "eval" in name)
    plain = ("hgetall", "smembers", "exists", "zcount", "zrangebyscore", "hscan", "zmscore", "info")
    return scripts + sum(stats.get(f"cmdstat_{name}", {"usec": 0})["usec"] for name in plain)


async def bench(url, scale):
    meter = Meter(redis.Redis.from_url(url, protocol=2))
    client = async_client(url)
    meter.client.config_set("auto-aof-rewrite-percentage", 0)  # it would be timed with either
    share = await sizes(client, meter, scale)
    missed = []
    for fsync in ("everysec", "always"):
        meter.client.config_set("appendfsync", fsync)
        print(f"AOF {fsync}, {BATCH} a call, results of {len(RESULT):,} bytes")
        ratio = await rates(client, meter, scale)
        depths = await at_depths(client, meter, scale)
        look = await looks(client, meter, int(DEPTHS[-1] * scale))
        if fsync == "everysec":
            missed = judge(ratio, share, depths, look)
    meter.empty()
    await client.aclose()
    meter.client.close()
    return missed


def judge(ratio, share, depths, look):
    """Which bars were missed."""
    shallow, deep = (depths[depth] for depth in DEPTHS)
    item = max(lease + complete for lease, complete in depths.values())
    lease, complete = (after / before for before, after in zip(shallow, deep, strict=True))
    bars = {
        f"{ratio:.1f} times enqueue_many's rate, bar {BAR_RATE}": ratio >= BAR_RATE,
        f"{share:.3f} of its bytes, bar {BAR_BYTES}": share <= BAR_BYTES,
        f"lease + complete {item:.3f} ms an item, bar {BAR_ITEM_MS}": item < BAR_ITEM_MS,
        f"lease {lease:.2f} times slower when deep, bar {BAR_DEPTH}": lease <= BAR_DEPTH,
        f"complete {complete:.2f} times slower when deep, bar {BAR_DEPTH}": complete <= BAR_DEPTH,
        f"a look {look:.2f} ms of server time, bar {BAR_LOOK_MS}": look <= BAR_LOOK_MS,
    }
    for bar, met in bars.items():
        print(f"{'met   ' if met else 'MISSED'} {bar}")
    return [bar for bar, met in bars.items() if not met]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server that may be emptied; without it one is started")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of jobs")
    options = parser.parse_args()
    if options.url:
        missed = asyncio.run(bench(options.url, options.scale))
    else:
        with servers.redis_server() as server:
            missed = asyncio.run(bench(server.url, options.scale))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
