"""One sink for all runs of a Redis: finds them, serves each in a task, and reaps their queues."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from common.errors import ConflictError, EpochError, QueueError, RunClosedError
from common.no_such_run import not_in_redis
from common.queue.prompts import PromptQueue
from common.queue.run_list import OVER, REST_SECONDS, RunList
from common.queue.same_run import refuse_other_store
from consumer.sink.burst import Burst
from consumer.sink.outage import Outage, StoppingError, pause
from consumer.sink.run import RunSink

if TYPE_CHECKING:
    from common.errors import GenqError
    from common.ids import RunName
    from common.records import RunInfo
    from consumer.sink.tools import Tools

log = structlog.get_logger()
FIND_SECONDS = 1.0  # between looks for new runs
BURST_SECONDS = 0.2  # the same, where the end is waited for
REAP_SECONDS = 3.0


class SinkService:
    """The sinks of all runs, or of the one that is named."""

    def __init__(self, tools: Tools, *, only: RunName | None, burst: bool) -> None:
        self._tools = tools
        self._only = only
        self._burst = Burst(tools) if burst else None
        self._verdict: GenqError | None = None  # what a burst ends with
        self._sinks: dict[RunName, RunSink] = {}
        self._tasks: dict[RunName, asyncio.Task[None]] = {}
        # A burst that is about to end must not take an opened run for one that is over.
        self._list = RunList(tools.redis, rest_seconds=0.0 if burst else REST_SECONDS)
        self._found: list[RunInfo] = []
        self._elsewhere: dict[RunName, ConflictError] = {}  # runs that are kept in another store
        self._said_missing = False
        self._unreaped: dict[RunName, bool] = {}  # whose queue refused the last time; is it said?
        self._finding = Outage("redis", tools.stop, retried=QueueError, figures=tools.figures)

    @property
    def sinks(self) -> list[RunSink]:
        """The runs that are served now; may be asked from any thread."""
        return list(self._sinks.values())

    async def serve(self) -> None:
        """Serve until told to stop; in burst mode until every run is finished.

        Raises:
            VerifyError: burst mode, and a run cannot be finished: storage does not hold it, or its
                parts cannot be trusted.
            ConflictError: burst mode, and all runs are kept in another store.
            EpochError: burst mode, and Redis lost a run that was served and is not finished. One
                that is named is waited for instead, and so are all others, before this is said.
            QueueError: burst mode, and Redis is empty while the store holds unfinished runs.
            StoreError: burst mode, Redis is empty, and the store does not say what it holds.
            DeadLettersError: burst mode, and items are dead-lettered.
        """
        reaper = asyncio.create_task(self._reap_for_ever())
        try:
            with suppress(StoppingError):
                await self._find_until_stopped()
            await asyncio.gather(*self._tasks.values())
        finally:
            reaper.cancel()
            for task in self._tasks.values():
                task.cancel()
        if self._verdict is not None:
            raise self._verdict

    async def _find_until_stopped(self) -> None:
        while not self._tools.stop.is_set():
            await self._find()
            if self._burst and self._all_over():
                here = list(self._sinks.values())
                self._verdict = await self._burst.verdict(here, list(self._elsewhere.values()))
                self._tools.stop.set()
            await pause(self._tools.stop, BURST_SECONDS if self._burst else FIND_SECONDS)

    async def _find(self) -> None:
        """Look which runs there are; one of a new epoch is served by a new sink."""
        infos = await self._finding.outlast(self._list.look)
        asked = [info for info in infos if self._only in (None, info.run)]
        if not asked:
            self._say_missing([info.run for info in infos])
        self._found = [info for info in asked if self._is_here(info)]
        if self._burst:
            self._burst.saw(self._found)
        for run, task in list(self._tasks.items()):
            if task.done():
                task.result()  # a bug of ours ends the process
                del self._tasks[run], self._sinks[run]
        found = {info.run: info for info in self._found}
        for run, sink in self._sinks.items():
            sink.heard(found.get(run), stirs=run in self._list.stirred)
        for info in self._found:
            if info.run not in self._tasks:
                sink = RunSink(self._tools, info)
                self._sinks[info.run] = sink
                self._tasks[info.run] = asyncio.create_task(sink.serve(), name=info.run)

    def _is_here(self, info: RunInfo) -> bool:
        """Return whether the run is kept in this sink's store; say once if it is in another."""
        before = self._elsewhere.pop(info.run, None)
        try:
            refuse_other_store(info, self._tools.store.url)
        except ConflictError as error:
            if str(error) != str(before):
                log.warning(
                    "sink.other_store",
                    run=info.run,
                    what=error.what,
                    why=error.why,
                    fix=f"{error.fix}\nThis sink leaves the run alone.",
                )
            self._elsewhere[info.run] = error
            return False
        return True

    def _say_missing(self, known: list[RunName]) -> None:
        """Say once that the run that was asked for is waited for: it may be a mistyped name."""
        if self._only is not None and not self._said_missing:
            missing = not_in_redis(self._only, known)
            log.warning(
                "sink.no_such_run",
                run=self._only,
                what=f"{missing.what} Waiting for it: a load may follow; Ctrl-C ends this.",
                fix=missing.fix,
            )
        self._said_missing = True

    def _all_over(self) -> bool:
        if not self._tasks.keys() <= {info.run for info in self._found}:
            return False  # Redis lost it; its sink may be storing what it has in hand
        if not self._found:
            return self._only is None or bool(self._elsewhere)
        return all(
            (sink := self._sinks.get(info.run)) is not None and (sink.over or sink.broken)
            for info in self._found
        )

    async def _reap_for_ever(self) -> None:
        """Take expired leases back and put due retries on the queue, as consumers do, too.

        Each run is tried once a round: what one of them refuses for good keeps no other waiting.
        """
        while not self._tools.stop.is_set():
            for info in self._found:
                if info.state not in OVER:
                    await self._reap(info)
            await pause(self._tools.stop, REAP_SECONDS)

    async def _reap(self, info: RunInfo) -> None:
        queue = PromptQueue(self._tools.redis, info.run, info.epoch, self._tools.limits)
        try:
            async with self._tools.redis_calls:
                while (await queue.reap()).more:
                    pass
        except (EpochError, RunClosedError):
            return  # the next look finds what became of the run
        except QueueError as error:
            self._not_reaped(info.run, error)
        else:
            self._unreaped.pop(info.run, None)

    def _not_reaped(self, run: RunName, error: QueueError) -> None:
        """Say so once, at the second round: of an outage of Redis whoever waits for it tells."""
        figures, said = self._tools.figures, self._unreaped.get(run)
        figures.failed_calls["redis"] += 1
        if said is False and not figures.away["redis"]:
            log.warning("sink.not_reaped", run=run, what=error.what, why=error.why, fix=error.fix)
            said = True
        self._unreaped[run] = bool(said)
