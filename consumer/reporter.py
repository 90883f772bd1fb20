"""The consumer as RQ's tools see it: a worker with a name, queues, a state and counts.

Registration, heartbeat, death and commands go through RQ's own code on a blocking connection,
in one thread of their own, so that a slow Redis never holds up generation. None of it decides
anything about an item: leases do.

:class:`Worker` can also be started by RQ: ``rq worker-pool RUN -n 2 -w consumer.reporter.Worker``
makes worker i serve the i-th GPU of ``GENQ_GPUS``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from redis.exceptions import RedisError
from rq import worker_registration
from rq.worker import BaseWorker

from common.queue.workers import OURS_FIELD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import redis

log = structlog.get_logger()

BEAT_SECONDS = 5.0
LISTEN_SECONDS = 1.0  # between tries to hear commands while Redis is away
CALL_SECONDS = 15.0  # a call that takes longer is given up, so that a stop is never held up
QUIT_SECONDS = 5.0  # for the last words to Redis


@dataclass(slots=True)
class Commands:
    """What to do when RQ's tools ask; called on RQ's thread."""

    shutdown: Callable[[], None]
    stop_job: Callable[[str], None]


class Worker(BaseWorker):
    """An RQ worker whose jobs are run elsewhere: many at a time, on one event loop."""

    commands: Commands | None = None
    leaving: bool = False

    def handle_payload(self, message: dict[str, Any]) -> None:
        """Take a command from RQ's tools. Never raises: that would end RQ's thread."""
        try:
            payload = json.loads(message["data"])
            command, job = payload.get("command"), str(payload.get("job_id") or "")
        except (ValueError, TypeError, KeyError, AttributeError):
            log.warning("unreadable command ignored")
            return
        if self.commands is None:
            return
        if command == "shutdown":
            self.commands.shutdown()
        elif command in {"stop-job", "stop-execution"} and job:
            self.commands.stop_job(job)
        else:
            log.warning("command ignored", command=command)

    def _pubsub_exception_handler(self, error: Exception, _pubsub: Any, thread: Any) -> None:
        """Listen again, whatever ended it; RQ's own would say so at every try, or give up."""
        if self.leaving:
            thread.stop()
            return
        log.debug("not listening for commands, trying again", why=str(error))
        time.sleep(LISTEN_SECONDS)

    def clean_registries(self) -> None:
        """Do nothing: the queue's own reaper decides about leases, and RQ's would not ask it."""

    def work(self, burst: bool = False, *_args: Any, **_options: Any) -> bool:  # noqa: FBT001, FBT002 - RQ's signature
        """Serve the first free GPU of ``GENQ_GPUS``, as ``gen-consumer`` would; return at the end.

        RQ's other options (scheduler, log format, most jobs) mean nothing here and are ignored.
        """
        from common.cliutil import show_error  # noqa: PLC0415 - RQ's tools load this module
        from common.errors import GenqError  # noqa: PLC0415
        from common.ids import RunName  # noqa: PLC0415
        from common.settings import load_settings  # noqa: PLC0415
        from common.telemetry.logs import setup_logging  # noqa: PLC0415
        from consumer.start import serve_for_pool  # noqa: PLC0415

        try:
            settings = load_settings()
            setup_logging(level=settings.log_level, form=settings.log_format)
            runs = [RunName(name) for name in self.queue_names()]
            serve_for_pool(settings, self, runs, burst=burst)
        except GenqError as error:
            show_error(error)
            return False
        return True

    def serialize(self) -> dict[str, Any]:
        """Return RQ's record of the worker, with a mark that tells it from a stock one."""
        return {**super().serialize(), OURS_FIELD: "1"}

    # RQ's method names, on purpose: everything below runs in the reporter's thread.

    def enter(self) -> None:
        """Register, and listen for commands."""
        self.register_birth()  # type: ignore[no-untyped-call]  # rq's
        self.subscribe()  # type: ignore[no-untyped-call]  # rq's
        self.set_state("started")

    def beat(self, *, state: str, queues: Sequence[str], seconds: float) -> None:
        """Say that it lives, what it does and serves, and how long it worked since the last beat.

        Finished and failed jobs are counted by the queue's scripts, with the change itself.
        """
        if not self.connection.exists(self.key):
            self.register_birth()  # type: ignore[no-untyped-call]  # Redis lost it, or was away longer than the record lives
        self._serve(queues)
        with self.connection.pipeline() as pipeline:
            self.heartbeat(pipeline=pipeline)
            self.set_state(state, pipeline=pipeline)
            self.increment_total_working_time(timedelta(seconds=seconds), pipeline)
            pipeline.execute()

    def _serve(self, names: Sequence[str]) -> None:
        """Move the registration to other queues."""
        if names == self.queue_names():
            return
        first = not self.queues
        gone = [queue for queue in self.queues if queue.name not in names]
        self.queues = [
            self.queue_class(name, connection=self.connection, serializer=self.serializer)
            for name in names
        ]
        self._ordered_queues = self.queues[:]
        with self.connection.pipeline() as pipeline:
            for queue in gone:
                pipeline.srem(worker_registration.WORKERS_BY_QUEUE_KEY % queue.name, self.key)
            worker_registration.register(self, pipeline)
            pipeline.hset(self.key, "queues", ",".join(names))
            pipeline.execute()
        # A record that ended by its time to live leaves its name in RQ's sets, for every look.
        for queue in self.queues if first else []:
            worker_registration.clean_worker_registry(queue)

    def leave(self) -> None:
        """Register the death and stop listening."""
        self.teardown()  # type: ignore[no-untyped-call]  # rq's

    def leave_record(self, seconds: int) -> None:
        """Stop listening, and let the record outlive the process for a while, as a killed one's."""
        self.heartbeat(timeout=seconds)
        self.unsubscribe()  # type: ignore[no-untyped-call]  # rq's


class Reporter:
    """Runs a :class:`Worker`'s conversation with Redis in one thread."""

    def __init__(self, worker: Worker) -> None:
        # RQ's own lines would break our log's form; its warnings still come through.
        worker.log.setLevel(logging.WARNING)
        self._worker = worker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rq-reporter")
        self._entered = False
        self._failing = False

    @classmethod
    def connect(cls, connection: redis.Redis, name: str) -> Reporter:
        """Return a reporter with a worker of its own. Talks to Redis."""
        return cls(Worker([], name=name, connection=connection, serializer="json"))

    @property
    def name(self) -> str:
        """The worker's name in ``rq info``."""
        return str(self._worker.name)

    def listen(self, commands: Commands) -> None:
        """Set what the commands of RQ's tools do."""
        self._worker.commands = commands

    async def beat(self, *, state: str, queues: Sequence[str], seconds: float) -> None:
        """Report once. Never raises."""
        try:
            await self._call(self._beat, state, list(queues), seconds)
        except (RedisError, OSError, ValueError, TimeoutError) as error:
            if not self._failing:
                log.warning("not reported to RQ", why=str(error))
            self._failing = True
        else:
            self._failing = False

    async def close(self, *, record_seconds: int | None = None) -> None:
        """Take leave; waits a few seconds at most. Never raises.

        With ``record_seconds`` RQ's record stays for so long instead.
        """
        self._worker.leaving = True
        leave: Callable[[], None] = self._worker.leave
        if record_seconds is not None:
            leave = partial(self._worker.leave_record, record_seconds)
        try:
            if self._entered:
                await asyncio.wait_for(self._call(leave), QUIT_SECONDS)
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("death not reported to RQ", why=str(error))
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _beat(self, state: str, queues: list[str], seconds: float) -> None:
        if not self._entered:
            self._worker.enter()
            self._entered = True
        self._worker.beat(state=state, queues=queues, seconds=seconds)

    async def _call(self, function: Callable[..., None], *args: Any) -> None:
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._thread, function, *args)
        await asyncio.wait_for(call, CALL_SECONDS)
