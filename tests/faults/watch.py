"""Those who look while a run goes on: the audit, and RQ's own tools."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from tests.support import forge
from tests.support.queues import async_client
from tests.support.servers import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.audit import RunCounts
    from common.ids import RunName
    from tests.faults.stage import Redis

ROOT = Path(__file__).parents[2]
SAMPLE_SECONDS = 0.1
LOOK_SECONDS = 0.5
LONG_ENOUGH_SECONDS = 5.0  # of looking: whatever was then never done cannot be done
ANSWER_SECONDS = 30.0  # on a crowded machine
COMMAND_SECONDS = 150.0  # the same, where a start has to import
BACK_SECONDS = 60.0  # the longest that Redis is away
DONE_WITHOUT = {"config|get"}  # asked for only to warn of a weak log, and done without
COMMANDS = {"info": ("info",), "requeue": ("requeue", "--all")}


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
    denied: set[str] = field(default_factory=set)  # by the ACL
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
                        self._note_denials(await client.acl_log())
                        self._take(run_counts(self.run, await scripts.call("sample")))
                    except (QueueError, redis.ConnectionError):
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

    def _note_denials(self, log: list[dict[str, Any]]) -> None:
        for entry in log:
            if entry["object"] not in DONE_WITHOUT:
                self.denied.add(f"{entry['username']}: {entry['object']} ({entry['reason']})")


@dataclass
class Looker:
    """`rq info` and `rq requeue`, in a loop, as people and their cron jobs run them.

    What fails while Redis was up all the time is a finding.
    """

    server: Redis
    run: RunName
    items: int
    still: asyncio.Lock
    user: str = "producer"
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    seconds: float = 0.0  # in which it looked
    looks: int = 0  # that found the run
    requeued: int = 0  # items
    workers: set[str] = field(default_factory=set)
    commands: Counter[str] = field(default_factory=Counter)  # of RQ's, with exit code 0
    problems: list[str] = field(default_factory=list)

    async def watch(self) -> None:
        """Look until it is enough; never ends in the middle of a move."""
        began = time.monotonic()
        url = self.server.url_of(self.user)
        with redis.Redis.from_url(url, socket_timeout=ANSWER_SECONDS) as client:
            while not self.enough.is_set():
                await self._try("a look", self._info, client)
                async with self.still:
                    await self._try("requeue", self._requeue, client)
                await asyncio.sleep(LOOK_SECONDS)  # poll: as a cron job does
        self.seconds = time.monotonic() - began

    async def _try(self, name: str, call: Callable[[redis.Redis], None], client: Any) -> None:
        life = self.server.life
        try:
            await asyncio.to_thread(call, client)
        except (RedisError, OSError) as error:
            if self._was_up(life):
                said = f"{type(error).__name__}: {error}"
                self.problems.append(f"{name} failed while Redis was up: {said}")

    def _was_up(self, life: int) -> bool:
        """Tell whether Redis has been there without a break since it had this life."""
        return bool(life) and life == self.server.life

    def _info(self, client: redis.Redis) -> None:
        """Do what `rq info` does: clean, then count."""
        for queue in Queue.all(connection=client, serializer=JSONSerializer):
            clean_registries(queue)
            clean_worker_registry(queue)
            counts = {
                "queued": queue.count,
                "executing": queue.started_job_registry.count,
                "finished": queue.finished_job_registry.count,
                "failed": queue.failed_job_registry.count,
            }
            if not all(0 <= count <= self.items for count in counts.values()):
                self.problems.append(f"`rq info` shows of {self.items} items: {counts}")
            self.looks += queue.name == self.run
        for worker in Worker.all(connection=client):
            worker.queue_names()
            self.workers.add(worker.name)

    def _requeue(self, client: redis.Redis) -> None:
        registry = FailedJobRegistry(self.run, connection=client, serializer=JSONSerializer)
        for job in registry.get_job_ids():
            with suppress(InvalidJobOperation, NoSuchJobError):
                registry.requeue(job)
                self.requeued += 1

    async def command(self, first: str) -> None:
        """Run both of RQ's command lines; again where Redis was not there all the time."""
        for name in sorted(COMMANDS, key=lambda name: name != first):
            while not await self._command(name):
                await eventually(lambda: self.server.life, BACK_SECONDS)

    async def _command(self, name: str) -> bool:
        argv = ["rq", *COMMANDS[name]]
        argv += ["--queue", self.run] if name == "requeue" else []
        env = {**os.environ, "RQ_REDIS_URL": self.server.url_of(self.user)}
        async with self.still if name == "requeue" else nullcontext():
            life = self.server.life
            code, said = await asyncio.to_thread(_run, argv, env)
            if not self._was_up(life):
                return False
        if code or "Traceback" in said:
            self.problems.append(f"`rq {name}` ended with {code}:\n{said[-3000:]}")
        else:
            self.commands[name] += 1
        return True

    def missing(self, *, commands: bool) -> list[str]:
        """Return what of all this was never done; none of a run that was too short for it."""
        if self.seconds < LONG_ENOUGH_SECONDS:
            return []
        done = {
            "a look found the run": self.looks,
            "an item was requeued": self.requeued,
            "a look found a worker": len(self.workers),
        }
        if commands:
            done |= {f"`rq {name}` was carried out": self.commands[name] for name in COMMANDS}
        return [f"in {self.seconds:.0f} s never: {what}" for what, n in done.items() if not n]


def _run(argv: list[str], env: dict[str, str]) -> tuple[int | None, str]:
    """Run a command; no exit code: it did not end in time."""
    options = {"env": env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = forge.run(argv, timeout=COMMAND_SECONDS, text=True, **options)
    except subprocess.TimeoutExpired:
        return None, f"not within {COMMAND_SECONDS:.0f} s"
    return done.returncode, done.stdout
