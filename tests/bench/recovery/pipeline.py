"""Faults in a whole pipeline: real services, the stand-in where SGLang would be."""

from __future__ import annotations

import asyncio
import re
import signal
import time
import urllib.request
from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import redis

from common.ids import RunName
from common.keys import RunKeys
from common.objectstore import RunPaths
from common.parts.index import read_index
from consumer.engine.records import records
from tests.bench.bench_load import write_rows
from tests.faults.stage import stage
from tests.support.crew import Crew, Member
from tests.support.servers import eventually
from tests.support.tiny_tokenizer import build_model_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from deploy.embedded import S3Server
    from tests.faults.stage import Stage

RUN = RunName("recovery")
CONSUMERS = ("first", "second")
POLL_SECONDS = 0.05
DECODED = re.compile(rb'realtime_tokens_total\{[^}]*mode="decode"[^}]*\} ([0-9.]+)')


@dataclass
class Killed:
    items: int  # leases that the consumer held
    seconds: float  # until the last of them was leased again


@dataclass
class Life:
    items: int
    first_token_seconds: list[float] = field(default_factory=list)
    rate: float = 0.0  # completions a second before Redis was killed
    redis_seconds: float = 0.0  # from the kill until it answered again
    full_rate_seconds: float = 0.0  # from then on
    decoded: int = 0
    stored: int = 0

    @property
    def repeated(self) -> float:
        return (self.decoded - self.stored) / self.stored

    @property
    def items_repeated(self) -> float:
        return (self.decoded - self.stored) / (self.stored / self.items)


@dataclass
class Town:
    """A pipeline of two consumers and a sink."""

    place: Stage
    crew: Crew
    client: redis.Redis
    model: str
    engine: tuple[str, ...]  # flags of the stand-in
    running: int
    keys: RunKeys = field(default_factory=lambda: RunKeys(RUN))

    async def load(self, rows: int) -> None:
        path = self.place.folder / "rows.jsonl"
        write_rows(path, rows)
        words = ("load", str(path), "--run", RUN, "--model", self.model, "--quiet")
        loading = self.crew.start("load", "gen-producer", *words)
        assert await loading.ended(120) == 0, loading.last_words()

    def start(self, name: str) -> Member:
        flags = ("--model", self.model, "--max-running", str(self.running), "--", *self.engine)
        return self.crew.start(name, "gen-consumer", *flags)

    def start_all(self) -> None:
        for name in CONSUMERS:
            self.start(name)
        self.crew.start("sink", "gen-sink", "--rows", "200", "--seconds", "2")

    @property
    def done(self) -> int:
        return int(self.client.bitcount(self.keys.done))

    def held_by(self, name: str) -> list[bytes]:
        """The items that a consumer holds leases on."""
        worker = f"-cpu-{self.crew.members[name].pids[-1]}-".encode()
        holders = self.client.hgetall(self.keys.holder)
        return [item for item, holder in holders.items() if worker in holder]


@asynccontextmanager
async def town(
    s3: S3Server,
    folder: Path,
    *,
    running: int,
    token_seconds: float,
    answer_tokens: int,
    **env: str,
) -> AsyncIterator[Town]:
    with stage(folder, s3, ()) as place:
        url = place.redis.url
        crew = Crew({**place.env, "GENQ_REDIS_URL": url, **env}, folder / "crew")
        engine = ("--token-seconds", str(token_seconds), "--answer-tokens", str(answer_tokens))
        model = str(build_model_folder(folder / "model"))
        with redis.Redis.from_url(url) as client:
            try:
                yield Town(place, crew, client, model, engine, running)
            except AssertionError:
                print(crew.last_words())
                raise
            finally:
                await crew.end()


async def consumer_dies(s3: S3Server, folder: Path, lease: float) -> Killed:
    """Kill one of two consumers; measure until none of its items waits any more."""
    leases = {"GENQ_LEASE_SECONDS": str(lease), "GENQ_RENEW_SECONDS": str(lease / 4)}
    async with town(s3, folder, running=32, token_seconds=0.02, answer_tokens=80, **leases) as here:
        await here.load(int(50 * (lease + 40)))
        here.start_all()
        await eventually(lambda: all(len(here.held_by(name)) >= 32 for name in CONSUMERS), 60)
        first = here.crew.members["first"]
        first.signal(signal.SIGKILL)
        died = time.monotonic()
        lost = set(here.held_by("first"))
        count = len(lost)

        def all_leased_again() -> bool:
            waiting = here.client.hmget(here.keys.holder, *lost)
            dead = set(here.held_by("first"))
            for item, holder in zip(sorted(lost), waiting, strict=True):
                answered = here.client.getbit(here.keys.done, int(item))
                if answered or (holder and item not in dead):
                    lost.discard(item)
            return not lost

        await eventually(all_leased_again, lease + 60)
        return Killed(count, time.monotonic() - died)


@dataclass
class Meter:
    """Reads how many tokens each life of each engine has decoded."""

    crew: Crew
    decoded: dict[tuple[str, int], int] = field(default_factory=dict)
    history: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=4000))

    @property
    def total(self) -> int:
        return sum(self.decoded.values())

    async def watch(self) -> None:
        while True:
            for name in CONSUMERS:
                await asyncio.to_thread(self._read, name)
            self.history.append((time.monotonic(), self.total))
            await asyncio.sleep(POLL_SECONDS)  # poll: the engines' counters

    def _read(self, name: str) -> None:
        for record in records(self.crew.members[name].folder / "state").values():
            with suppress(OSError):
                url = f"http://127.0.0.1:{record.port}/metrics"
                with urllib.request.urlopen(url, timeout=1) as answer:
                    found = DECODED.search(answer.read())
                if found:
                    self.decoded[name, record.session] = int(float(found[1]))

    def lives(self, name: str) -> set[int]:
        """The lives of a consumer's engine that have decoded something."""
        return {life for (of, life), tokens in self.decoded.items() if of == name and tokens}

    def rate(self, seconds: float) -> float:
        """Tokens a second over the last ``seconds``."""
        now = self.history[-1]
        then = next(old for old in reversed(self.history) if now[0] - old[0] >= seconds)
        return (now[1] - then[1]) / (now[0] - then[0])


async def engine_and_redis_die(s3: S3Server, folder: Path) -> Life:
    """Kill engines, then Redis, then a consumer, in one run; count what was made twice."""
    life = Life(items=4000)
    tokens = 60
    async with town(s3, folder, running=16, token_seconds=0.008, answer_tokens=tokens) as here:
        await here.load(life.items)
        here.start_all()
        meter = Meter(here.crew)
        metering = asyncio.create_task(meter.watch())
        await eventually(lambda: here.done > life.items * 0.1, 60)
        for n in range(3):
            life.first_token_seconds.append(await _kill_engine(here, meter, CONSUMERS[n % 2]))
        await eventually(lambda: here.done > life.items * 0.5, 60)
        await _kill_redis(here, meter, life, tokens)
        await eventually(lambda: here.done > life.items * 0.75, 60)
        here.crew.members["first"].signal(signal.SIGKILL)
        await here.crew.members["first"].ended()
        here.start("first")
        success = RunPaths(RUN).success
        await eventually(lambda: here.place.store.stat(success) is not None, 120)
        metering.cancel()
        life.decoded, life.stored = meter.total, _stored_tokens(here)
    return life


async def _kill_engine(here: Town, meter: Meter, name: str) -> float:
    before = meter.lives(name)
    for engine in here.crew.members[name].engines():
        engine.kill()
    died = time.monotonic()
    await eventually(lambda: meter.lives(name) - before, 60)
    return time.monotonic() - died


async def _kill_redis(here: Town, meter: Meter, life: Life, tokens: int) -> None:
    await eventually(lambda: all(here.held_by(name) for name in CONSUMERS), 60)
    began = time.monotonic()
    await eventually(lambda: time.monotonic() - began > 5, 10)  # a rate needs a while
    before = meter.rate(4.0)
    life.rate = before / tokens
    killed = time.monotonic()
    await asyncio.to_thread(here.place.redis.kill)
    await asyncio.to_thread(here.place.redis.start)
    back = time.monotonic()
    life.redis_seconds = back - killed
    await eventually(lambda: time.monotonic() - back > 1 and meter.rate(1.0) >= 0.9 * before, 60)
    life.full_rate_seconds = time.monotonic() - back


def _stored_tokens(here: Town) -> int:
    store, paths = here.place.store, RunPaths(RUN)
    total = number = 0
    while index := read_index(store, paths, number):
        total += index.completion_tokens
        number += 1
    return total
