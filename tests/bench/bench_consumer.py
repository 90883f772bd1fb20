"""What a request costs the consumer: CPU a request at 256 in flight, against the stand-in engine.

    python -m tests.bench.bench_consumer [ITEMS] [IN_FLIGHT]

The bar is 2 ms a request. Counted is the CPU of the consumer's whole process (all threads)
between the first and the last result. A crowded machine inflates it: the load is printed beside.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from common.records import Sampling
from common.s3 import open_store
from common.settings import load_settings
from consumer.daemon import Signals
from consumer.start import Options, serve
from tests.support import servers
from tests.support.consumers import world_of
from tests.support.fake_engine import fake_state, running_fake

BAR_MS = 2.0
ANSWER_TOKENS = 256
TOKEN_SECONDS = 0.008
EVERY = 100  # results between two readings


@dataclass
class Meter:
    """CPU and wall time from the first result on."""

    done: int = 0
    first: tuple[float, float] | None = None
    last: tuple[float, float] = (0.0, 0.0)
    in_flight: list[int] = field(default_factory=list)

    def generated(self, _verdict: str) -> None:
        self.done += 1
        if self.done % EVERY == 0:
            self.last = (time.process_time(), time.monotonic())
            self.first = self.first or self.last


async def bench(items: int, in_flight: int, folder: Path, redis_url: str, store: dict) -> float:
    settings = load_settings(redis_url=redis_url, state_dir=folder / "state", **store)
    flags = ("--answer-tokens", str(ANSWER_TOKENS), "--token-seconds", str(TOKEN_SECONDS))
    more = {"max_running": in_flight, "api_key": ""}
    async with (
        world_of(settings, open_store(settings), {}, folder) as world,
        running_fake(folder, *flags, "--max-total-tokens", "10000000", **more) as engine,
    ):
        await world.load(items, sampling=Sampling(max_tokens=1000))
        meter = Meter()

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.5)  # poll: how many are in flight
                meter.in_flight.append(len((await fake_state(engine))["running"]))

        watching = asyncio.create_task(watch())
        settings = settings.model_copy(update={"model": world.model})
        options = Options(url=engine.url, burst=True)
        await serve(settings, options, signals=Signals(generated=meter.generated))
        watching.cancel()
    assert meter.done == items
    assert meter.first is not None
    cpu, wall = (last - first for last, first in zip(meter.last, meter.first, strict=True))
    counted = meter.done // EVERY * EVERY - EVERY
    each_ms = cpu * 1000 / counted
    busy = statistics.median(n for n in meter.in_flight if n)
    print(f"items               {meter.done} of {ANSWER_TOKENS} tokens each")
    print(f"in flight (median)  {busy:.0f}, most {max(meter.in_flight)}")
    print(f"rate                {counted / wall:.0f} requests/s")
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"client CPU          {each_ms:.2f} ms a request (bar: {BAR_MS})")
    return each_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("items", type=int, nargs="?", default=4000)
    parser.add_argument("in_flight", type=int, nargs="?", default=256)
    options = parser.parse_args()
    with (
        servers.redis_server() as redis,
        servers.s3_server() as s3,
        tempfile.TemporaryDirectory() as folder,
    ):
        store = s3.settings(prefix="bench")
        each_ms = asyncio.run(
            bench(options.items, options.in_flight, Path(folder), redis.url, store)
        )
    return 0 if each_ms <= BAR_MS else 1


if __name__ == "__main__":
    sys.exit(main())
