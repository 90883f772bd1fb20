"""Those who look while a run goes on: the audit, and RQ's own tools."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import redis
from redis.exceptions import RedisError
from rq import Queue
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.registry import FailedJobRegistry, clean_registries
from rq.serializers import JSONSerializer
from rq.worker import Worker
from rq.worker_registration import clean_worker_registry

from common.audit import check_counts
from common.errors import QueueError
from common.queue.run_facts import run_counts
from common.queue.scripts import ANY_EPOCH, Scripts
from tests.support.queues import async_client

if TYPE_CHECKING:
    from common.audit import RunCounts
    from common.ids import RunName

ROOT = Path(__file__).parents[2]
SAMPLE_SECONDS = 0.1
LOOK_SECONDS = 0.5


@dataclass
class Sampler:
    """Takes the audit's sample again and again; each is believed at once, none is repeated.

    ``still`` is held by whoever lets RQ's own code move an item, which it does in two steps.
    """

    url: str
    run: RunName
    still: asyncio.Lock = field(default_factory=asyncio.Lock)
    samples: int = 0
    away: int = 0  # looks at a server that did not answer
    newest: RunCounts | None = None
    problems: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def progress(self) -> float:
        """The share of items that have a result."""
        return self.newest.done / self.newest.total if self.newest else 0.0

    async def watch(self) -> None:
        async with async_client(self.url) as client:
            scripts = Scripts(client, self.run, ANY_EPOCH)
            while True:
                async with self.still:
                    try:
                        self._take(run_counts(self.run, await scripts.call("sample")))
                    except QueueError:
                        self.away += 1
                await asyncio.sleep(SAMPLE_SECONDS)  # poll: samples, at any moment of the run

    def _take(self, counts: RunCounts) -> None:
        before, self.newest = self.newest, counts
        self.samples += 1
        wrong = check_counts(counts)
        if before and before.epoch == counts.epoch and counts.committed < before.committed:
            wrong.append(f"committed fell from {before.committed} to {counts.committed}")
        at = time.monotonic() - self.began
        self.problems += [f"at {at:.1f} s: {text}" for text in wrong]


@dataclass
class Looker:
    """`rq info` and `rq requeue`, in a loop, as people and their cron jobs run them."""

    url: str
    run: RunName
    still: asyncio.Lock
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    looks: int = 0
    requeued: int = 0

    async def watch(self) -> None:
        """Look until it is enough; never ends in the middle of a move."""
        with redis.Redis.from_url(self.url, socket_timeout=5) as client:
            while not self.enough.is_set():
                with suppress(RedisError, OSError):
                    await asyncio.to_thread(self._info, client)
                    self.looks += 1
                    async with self.still:
                        self.requeued += await asyncio.to_thread(self._requeue, client)
                await asyncio.sleep(LOOK_SECONDS)  # poll: as a cron job does

    def _info(self, client: redis.Redis) -> None:
        """Do what `rq info` does: clean, then count."""
        for queue in Queue.all(connection=client, serializer=JSONSerializer):
            clean_registries(queue)
            clean_worker_registry(queue)
            assert queue.count >= 0
            for registry in (queue.started_job_registry, queue.finished_job_registry):
                assert registry.count >= 0
        for worker in Worker.all(connection=client):
            worker.queue_names()

    def _requeue(self, client: redis.Redis) -> int:
        registry = FailedJobRegistry(self.run, connection=client, serializer=JSONSerializer)
        given = 0
        for job in registry.get_job_ids():
            with suppress(InvalidJobOperation, NoSuchJobError):
                registry.requeue(job)
                given += 1
        return given

    async def command(self, name: str) -> None:
        """Run RQ's own command line."""
        words = {"info": ("info",), "requeue": ("requeue", "--queue", self.run, "--all")}[name]
        argv = [sys.executable, "-m", "rq.cli", *words, "--url", self.url]
        async with self.still if name == "requeue" else nullcontext():
            await asyncio.to_thread(
                subprocess.run, argv, cwd=ROOT, capture_output=True, timeout=60, check=False
            )
