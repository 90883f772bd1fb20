"""One Redis under a fleet of a thousand cards: `make bench-scale`.

    python -m tests.bench.bench_scale [--items 10000000] [--seconds 300] [--record FILE]

A real Valkey with `appendfsync always`; items loaded by the real enqueue scripts; then simulated
consumers (tests/bench/scale/crowd.py) and two sinks, in two processes. Exits with 1 when a status
frame takes 50 ms of the server's time or more, when a lease was lost, or when the books do not add
up. A crowded machine slows clients first: the lag of their event loops is printed beside.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import redis

from common.audit import check_counts
from common.ids import run_name
from common.queue.prompts import CHUNK_ITEMS, PromptQueue, QueueLimits
from common.queue.run_state import Runs
from common.settings import load_settings
from producer.status.data import Watcher
from tests.bench.scale.crowd import Plan
from tests.bench.scale.histogram import Histogram
from tests.bench.scale.meter import SAMPLE_SECONDS, Meter
from tests.bench.scale.record import Scale, page, summary
from tests.support import servers
from tests.support.queues import async_client, manifest

RUN = run_name("bench-scale")
PROCESSES = 2
CALLS_IN_FLIGHT = 8  # as a load makes them
FRAMES = 20
BAR_FRAME_MS = 50.0
ROOT = Path(__file__).parents[2]


async def load(client, items):
    """Load the run; return its epoch and how long it took."""
    runs = Runs(client, QueueLimits())
    info = await runs.create(manifest(items, run=RUN))
    queue = PromptQueue(client, RUN, info.epoch, QueueLimits())
    chunks = iter(range(-(-items // CHUNK_ITEMS)))

    async def work():
        for chunk in chunks:
            await queue.enqueue(chunk)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CALLS_IN_FLIGHT)))
    seconds = time.perf_counter() - began
    await runs.open(RUN)
    return info.epoch, seconds


def start(stack, plan):
    """Start half of the crowd; it waits until it is told to begin."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.scale.crowd"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    process.stdin.write(json.dumps(dataclasses.asdict(plan)) + "\n")
    process.stdin.flush()
    return process


def plans(options, url, epoch):
    each, more = divmod(options.consumers, PROCESSES)
    first = 0
    for number in range(PROCESSES):
        count = each + (number < more)
        yield Plan(
            url=url,
            run=RUN,
            epoch=epoch,
            first=first,
            consumers=count,
            leases=options.leases,
            pace=options.pace,
            sigma=options.sigma,
            result_bytes=options.result_bytes,
            put_seconds=options.put_seconds,
            part_rows=options.part_rows,
            seconds=options.seconds,
        )
        first += count


def drive(options, url, epoch, meter):
    """Let the crowd work; return readings before and after, and what it counted."""
    with ExitStack() as stack:
        halves = [start(stack, plan) for plan in plans(options, url, epoch)]
        for half in halves:
            assert half.stdout.readline().strip() == "ready", "a process of the crowd gave up"
        meter.sample_from_now()
        before = meter.read()
        for half in halves:
            half.stdin.write("begin\n")
            half.stdin.flush()
        until = time.monotonic() + options.seconds
        while (left := until - time.monotonic()) > SAMPLE_SECONDS:
            time.sleep(SAMPLE_SECONDS)  # poll: the server's log of commands is a ring
            meter.sample()
        time.sleep(max(0.0, left))  # poll: until the crowd's time is over
        after = meter.read()
        meter.sample_no_more()
        counted = [json.loads(half.stdout.readline()) for half in halves]
    return before, after, counted


async def frames(url, meter):
    """Milliseconds of the server's time that a status frame takes, with nobody else there."""
    settings = load_settings(redis_url=url)
    async with async_client(url) as client:
        watcher = Watcher(client, settings)
        await watcher.look(RUN)
        before, began = meter.command_seconds(), time.perf_counter()
        for _ in range(FRAMES):
            found = await watcher.look(RUN)
        wall = (time.perf_counter() - began) / FRAMES
        server = (meter.command_seconds() - before) / FRAMES
        assert len(found[0].workers) > 0
        counts = await Runs(client, QueueLimits()).sample(RUN)
    return server * 1e3, wall * 1e3, counts


def joined(counted, name):
    found: dict[str, Histogram] = {}
    for half in counted:
        for call, buckets in half[name].items():
            found.setdefault(call, Histogram()).join(Histogram(buckets))
    return found


def bench(options, url):
    with redis.Redis.from_url(url, protocol=2) as client:
        client.config_set("auto-aof-rewrite-percentage", 0)  # its fork would be measured with it
        meter = Meter(client)
        empty = meter.memory()["used_memory"]

        async def loading():
            async with async_client(url) as loader:
                return await load(loader, options.items)

        epoch, load_seconds = asyncio.run(loading())
        loaded = meter.memory()["used_memory"]
        print(f"loaded {options.items:,} items in {load_seconds:.0f} s", file=sys.stderr)
        before, after, counted = drive(options, url, epoch, meter)
        frame_ms, frame_wall_ms, counts = asyncio.run(frames(url, meter))
        lag = Histogram()
        for half in counted:
            lag.join(Histogram(half["lag"]))
        return Scale(
            options=options,
            version=client.info("server").get("valkey_version") or "?",
            load_seconds=load_seconds,
            item_bytes=(loaded - empty) / options.items,
            memory=meter.memory(),
            before=before,
            after=after,
            calls=joined(counted, "calls"),
            server=meter.server,
            lag=lag,
            completed=sum(half["completed"] for half in counted),
            committed=sum(half["committed"] for half in counted),
            lost=sum(half["lost"] for half in counted),
            starved=sum(half["starved"] for half in counted),
            repeated=sum(half["repeated"] for half in counted),
            clients_cpu=sum(half["cpu_seconds"] for half in counted),
            frame_ms=frame_ms,
            frame_wall_ms=frame_wall_ms,
            problems=check_counts(counts),
        )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--consumers", type=int, default=1000)
    parser.add_argument("--leases", type=int, default=96, help="of one consumer")
    parser.add_argument("--pace", type=float, default=1.2, help="completions/s of one consumer")
    parser.add_argument("--sigma", type=float, default=1.0, help="of the lognormal times")
    parser.add_argument("--result-bytes", type=int, default=10_000)
    parser.add_argument("--put-seconds", type=float, default=0.3, help="a part's stand-in PUT")
    parser.add_argument("--part-rows", type=int, default=500)
    parser.add_argument("--fsync", default="always", choices=["always", "everysec"])
    parser.add_argument("--record", type=Path, help="write the page there")
    return parser.parse_args()


def main():
    options = arguments()
    with servers.redis_server(appendfsync=options.fsync) as server:
        scale = bench(options, server.url)
    print(summary(scale))
    if options.record:
        words = [word for word in sys.argv[1:] if word]
        command = shlex.join(["python", "-m", "tests.bench.bench_scale", *words])
        options.record.write_text(page(scale, command), encoding="utf-8")
    bars = {
        f"a status frame takes {scale.frame_ms:.1f} ms of the server's time, bar {BAR_FRAME_MS}": (
            scale.frame_ms < BAR_FRAME_MS
        ),
        f"{scale.lost} leases lost": not scale.lost,
        f"the books: {'; '.join(scale.problems) or 'they add up'}": not scale.problems,
    }
    for bar, met in bars.items():
        print(f"{'met   ' if met else 'MISSED'} {bar}")
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
