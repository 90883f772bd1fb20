"""Half of the crowd, in a process of its own: simulated consumers and one sink, on a real Redis.

``python -m tests.bench.scale.crowd`` reads a :class:`Plan` as one line of JSON, prints ``ready``
when every consumer holds its leases, begins at the next line that it reads, and prints what it
counted as one line of JSON.

A consumer makes the calls that a real one makes, at the same rhythm: lease, extend, complete, reap,
the look at the runs, the figures and RQ's heartbeat. What is simulated is the engine: an answer is
there after a time drawn from a lognormal distribution. At the start the times left are those of a
crowd that has been at it for long, so the rate is steady at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import json
import math
import os
import random
import sys
import time
from dataclasses import dataclass, field
from functools import partial

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from common.errors import QueueError
from common.ids import Epoch, Item, RunName, Token, WorkerName, new_nonce
from common.keys import RQ_WORKERS, worker_key
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.run_state import Runs
from common.queue.workers import OURS_FIELD, set_gauges
from common.records import Finished, Verdict
from consumer.daemon import REAP_SECONDS, REFRESH_SECONDS
from consumer.leases.outbox import BATCH, GATHER_SECONDS
from consumer.reporter import BEAT_SECONDS
from tests.bench.scale.histogram import Histogram
from tests.bench.scale.sinks import Sink

RENEW_SECONDS = 15.0
RECORD_SECONDS = 480
CONNECTIONS = 256
LAG_EVERY_SECONDS = 0.1
ANSWER_SECONDS = 60.0  # longer than any service waits: a slow machine is measured, not a retry
REPEATS = 1000


@dataclass(frozen=True)
class Plan:
    url: str
    run: str
    epoch: str
    first: int  # number of the first consumer of this process
    consumers: int
    leases: int
    pace: float  # completions a second of one consumer
    sigma: float  # of the lognormal distribution of generation times
    result_bytes: int
    put_seconds: float
    part_rows: int
    seconds: float


@dataclass
class Counted:
    calls: dict[str, Histogram] = field(default_factory=dict)
    completed: int = 0
    committed: int = 0
    lost: int = 0
    repeated: int = 0  # calls that were not answered in time
    starved: int = 0  # lease calls that gave less than was asked for
    lag: Histogram = field(default_factory=Histogram)
    until: float = 0.0  # what ends later is not counted

    @property
    def on(self) -> bool:
        return time.monotonic() < self.until

    async def timed(self, name, call):
        """Time a call, repeated as real services repeat it where no answer came."""
        began = time.perf_counter()
        while True:
            try:
                answer = await call()
                break
            except QueueError as error:
                self.repeated += 1
                if self.repeated > REPEATS:
                    raise QueueError("The crowd gives up.", why=str(error)) from error
        if self.on:
            self.calls.setdefault(name, Histogram()).add(time.perf_counter() - began)
        return answer

    def as_data(self):
        return {
            "calls": {name: found.as_data() for name, found in self.calls.items()},
            "lag": self.lag.as_data(),
            "completed": self.completed,
            "committed": self.committed,
            "lost": self.lost,
            "starved": self.starved,
            "repeated": self.repeated,
            "cpu_seconds": time.process_time(),
        }


class Times:
    """Generation times: lognormal, with the mean that gives the pace."""

    def __init__(self, plan: Plan, dice: random.Random) -> None:
        self._sigma, self._dice = plan.sigma, dice
        self._mu = math.log(plan.leases / plan.pace) - plan.sigma**2 / 2

    def fresh(self) -> float:
        return self._dice.lognormvariate(self._mu, self._sigma)

    def left(self) -> float:
        """Of one that is met in the middle: long ones are met more often."""
        met = self._dice.lognormvariate(self._mu + self._sigma**2, self._sigma)
        return met * self._dice.random()


class Consumer:
    def __init__(self, plan, number, client, counted, payload) -> None:
        limits = QueueLimits()
        self._plan, self._client, self._counted = plan, client, counted
        self._dice = random.Random(number)
        self._times = Times(plan, self._dice)
        self._name = WorkerName(f"card-{number:04}")
        self._runs = Runs(client, limits)
        self._queue = PromptQueue(client, RunName(plan.run), Epoch(plan.epoch), limits)
        self._payload = payload
        self._entered = 0.0
        self._due: list[tuple[float, int, str]] = []
        self._held: dict[int, str] = {}

    async def enter(self) -> None:
        await self._lease(self._times.left)
        self._entered = time.monotonic()
        stamp = "2026-01-01T00:00:00.000000Z"
        record = {"state": "busy", "queues": self._plan.run, "hostname": "bench", "pid": 1}
        record |= {"birth": stamp, "last_heartbeat": stamp, OURS_FIELD: "1"}
        key = worker_key(self._name)
        async with self._client.pipeline() as pipe:
            pipe.hset(key, mapping=record)
            pipe.expire(key, RECORD_SECONDS)
            pipe.sadd(RQ_WORKERS, key)
            pipe.sadd(f"{RQ_WORKERS}:{self._plan.run}", key)
            await pipe.execute()
        await self._beat()

    async def work(self, until: float) -> None:
        """Answer, until the time is over; the rhythms begin anywhere, as those of a real crowd."""
        waited = time.monotonic() - self._entered
        self._due = [(due + waited, item, token) for due, item, token in self._due]
        rhythms = (
            self._every(RENEW_SECONDS, self.renew, until),
            self._every(REFRESH_SECONDS, self._look, until),
            self._every(REAP_SECONDS, self._reap, until),
            self._every(BEAT_SECONDS, self._beat, until),
            self._answer(until),
        )
        await asyncio.gather(*rhythms)

    async def _every(self, seconds, call, until) -> None:
        await asyncio.sleep(self._dice.random() * seconds)  # lasts: until its turn
        while time.monotonic() < until:
            began = time.monotonic()
            await call()
            left = max(0.0, seconds - (time.monotonic() - began))
            await asyncio.sleep(left)  # lasts: the rhythm of a consumer

    async def _answer(self, until) -> None:
        while (now := time.monotonic()) < until:
            due = self._due[0][0] if self._due else now + 1.0
            if due > now:
                await asyncio.sleep(min(due, until) - now)  # lasts: an answer
                continue
            await asyncio.sleep(GATHER_SECONDS)  # lasts: until a call is worth it
            await self._complete()
            await self._lease(self._times.fresh)

    async def _complete(self) -> None:
        batch, now = [], time.monotonic()
        while self._due and self._due[0][0] <= now and len(batch) < BATCH:
            _, item, token = heapq.heappop(self._due)
            if self._held.pop(item, None) is not None:
                batch.append(
                    Finished(Item(item), Token(token), Verdict.OK, self._payload, 1000, 3000)
                )
        if batch:
            call = partial(self._queue.complete, self._name, batch, request=new_nonce())
            await self._counted.timed("complete", call)
            self._counted.completed += len(batch) * self._counted.on

    async def _lease(self, seconds) -> None:
        free = self._plan.leases - len(self._held)
        if free <= 0:
            return
        call = partial(self._queue.lease, self._name, free, request=new_nonce())
        leased = await self._counted.timed("lease", call)
        self._counted.starved += (len(leased) < free) * self._counted.on
        now = time.monotonic()
        for one in leased:
            self._held[one.item] = one.token
            heapq.heappush(self._due, (now + seconds(), one.item, one.token))

    async def renew(self) -> None:
        held = [(Item(item), Token(token)) for item, token in self._held.items()]
        lost = await self._counted.timed("extend", partial(self._queue.extend, self._name, held))
        for item in lost:  # completed meanwhile, or lost
            self._counted.lost += self._held.pop(item, None) is not None

    async def _look(self) -> None:
        async def look():
            await self._runs.suspended()
            await self._runs.list()

        await self._counted.timed("look", look)

    async def _reap(self) -> None:
        while (await self._counted.timed("reap", self._queue.reap)).more:
            pass

    async def _beat(self) -> None:
        async def beat():
            key = worker_key(self._name)
            await self._client.exists(key)
            async with self._client.pipeline() as pipe:
                pipe.hset(key, "last_heartbeat", "2026-01-01T00:00:00.000000Z")
                pipe.expire(key, RECORD_SECONDS)
                pipe.hset(key, "state", "busy")
                pipe.hincrbyfloat(key, "total_working_time", BEAT_SECONDS)
                await pipe.execute()
            figures = {"gpu": 0, "host": "bench", "in_flight": len(self._held), "window": 96}
            await set_gauges(self._client, self._name, figures, 60)

        await self._counted.timed("beat", beat)


async def watch_lag(counted: Counted, until: float) -> None:
    while time.monotonic() < until:
        began = time.monotonic()
        await asyncio.sleep(LAG_EVERY_SECONDS)  # lasts: what is measured
        counted.lag.add(time.monotonic() - began - LAG_EVERY_SECONDS)


async def crowd(plan: Plan) -> Counted:
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        plan.url,
        max_connections=CONNECTIONS,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        timeout=ANSWER_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
    )
    counted, payload = Counted(), os.urandom(plan.result_bytes)
    async with redis.asyncio.Redis.from_pool(pool) as client:
        numbers = range(plan.first, plan.first + plan.consumers)
        consumers = [Consumer(plan, number, client, counted, payload) for number in numbers]
        for start in range(0, len(consumers), 16):
            await asyncio.gather(*(one.enter() for one in consumers[start : start + 16]))
        for one in consumers:
            await one.renew()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        until = counted.until = time.monotonic() + plan.seconds
        sink = Sink(plan, client, counted)
        await asyncio.gather(
            *(one.work(until) for one in consumers), sink.serve(until), watch_lag(counted, until)
        )
    await pool.disconnect()
    return counted


def main() -> None:
    plan = Plan(**json.loads(sys.stdin.readline()))
    assert {f.name for f in dataclasses.fields(Plan)} == set(dataclasses.asdict(plan))
    print(json.dumps(asyncio.run(crowd(plan)).as_data()), flush=True)


if __name__ == "__main__":
    main()
