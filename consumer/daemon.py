"""The consumer: one engine kept full with leased items, from start to drain.

Ties together the supervisor (the engine's life), the pump (what is in flight), the keeper and the
outbox (leases and outcomes), and the reporter (what the tools see). Each is a task of its own;
none waits for another longer than a Redis call.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from common.errors import EngineError, Exit, QueueError
from common.ids import RunName, WorkerName, item_of_job
from common.queue.run_list import OVER
from consumer.agreement import Agreement
from consumer.display import Display, Once
from consumer.engine.states import EngineState
from consumer.generation.client import Client
from consumer.generation.pump import Pump, PumpSignals
from consumer.generation.render import Prompts
from consumer.generation.runner import Ready, Runner
from consumer.leases.catalogue import Catalogue
from consumer.leases.fetcher import Fetcher
from consumer.leases.keeper import Keeper
from consumer.leases.lost import Served
from consumer.leases.outbox import Outbox
from consumer.leases.shards import Shards
from consumer.reporter import Commands
from consumer.stopping import end_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine
    from typing import Any

    import redis.asyncio

    from common.objectstore import ObjectStore
    from common.queue.prompts import QueueLimits
    from common.queue.run_state import Runs
    from common.records import RunInfo, Verdict
    from consumer.engine.api import Engine, EngineFacts, EngineSpec
    from consumer.engine.honesty import Honesty
    from consumer.engine.supervisor import Supervisor
    from consumer.reporter import Reporter
    from consumer.stopping import Stopping

REFRESH_SECONDS = 1.0  # how often the runs are read
REAP_SECONDS = 5.0
LOAD_SECONDS = 1.0  # how often the engine's figures are read
LAST_LEASE_SECONDS = 5.0  # at the end, for the answer to the last lease call
LAST_DELIVERY_SECONDS = 15.0  # at the end, for what the queue has not taken yet

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Signals:
    """Called as things happen, for tests to wait for. Nothing hangs on them."""

    leased: Callable[[int], None] = lambda _n: None
    generated: Callable[[str], None] = lambda _verdict: None
    completed: Callable[[int], None] = lambda _n: None
    drained: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a consumer was asked to do."""

    runs: Collection[RunName] = ()  # none: every run that the engine may serve
    burst: bool = False
    renew_seconds: float = 15.0
    drain_seconds: float = 300.0
    engine_on_trial: bool = False  # if it dies, its settings are to blame, and none of the items


@dataclass(frozen=True, slots=True)
class Parts:
    """What a consumer works with; opened and closed by whoever starts it."""

    redis: redis.asyncio.Redis
    runs: Runs
    limits: QueueLimits
    store: ObjectStore
    engine: Engine
    spec: EngineSpec
    supervisor: Supervisor
    reporter: Reporter
    honesty: Honesty | None = None


class Consumer:
    """Runs until it is stopped, its engine is beyond help, or (in a burst) nothing is left."""

    def __init__(
        self, parts: Parts, plan: Plan, stopping: Stopping, signals: Signals | None = None
    ) -> None:
        self._parts = parts
        self._plan = plan
        self._stopping = stopping
        self._signals = signals or Signals()
        self._facts: EngineFacts | None = None
        self._down = asyncio.Event()
        self._condemned: set[int] = set()
        self.tried: Counter[Verdict] = Counter()  # tries that ended, whatever they are worth
        worker = WorkerName(parts.reporter.name)
        self.agreement = Agreement(parts.runs, parts.honesty, parts.store)
        self.catalogue = Catalogue(
            parts.redis,
            parts.runs,
            parts.store,
            parts.limits,
            only=plan.runs,
            model=parts.spec.model,
            objection=self.agreement.objection,
        )
        self._served = Served()
        self.keeper = Keeper(worker, plan.renew_seconds)
        self.outbox = Outbox(
            worker, self.keeper, self.catalogue.present_queue, self._signals.completed
        )
        self.client = Client(parts.engine, parts.supervisor, attached=parts.spec.url is not None)
        self.pump = Pump(
            Fetcher(worker, self.catalogue, Shards(parts.store), self.keeper, self.outbox),
            self.keeper,
            self.outbox,
            Runner(parts.engine, self.client, worker),
            PumpSignals(
                leased=self._signals.leased,
                generated=self._generated,
                condemned=self._condemn,
            ),
            closed=self._closed,
            leaving=lambda: self.client.leaving,
            on_trial=plan.engine_on_trial,
        )
        self.display = Display(
            parts.runs, parts.reporter, parts.supervisor, self.catalogue, self.pump, self.outbox
        )

    async def run(self) -> Exit:
        """Work until told to stop; then drain.

        Raises:
            ConflictError: another consumer has the GPU.
            EngineError: the engine cannot be used; what was leased has been given back.
        """
        supervisor = self._parts.supervisor
        supervisor.on_down = self._engine_down
        supervisor.in_flight = lambda: len(self.client)
        supervisor.answered = lambda: self.pump.answered
        supervisor.suspected = lambda: self.pump.suspect_alone
        await supervisor.start()
        self._parts.reporter.listen(
            Commands(self._stopping.ask_from_thread(Exit.DONE), self._stop_job_from_thread())
        )
        background = [self._spawn(run) for run in self._services()]
        work = [self._spawn(self._follow_engine), self._spawn(self.pump.run)]
        asked = self._spawn(self._stopping.wait)
        try:
            done, _ = await asyncio.wait(
                {asked, *background, *work}, return_when=asyncio.FIRST_COMPLETED
            )
            await self._drain(work)
        finally:
            await end_tasks([asked, *work, *background])
            await self.client.close()
            await self.pump.runner.close()
            fatal = supervisor.state is EngineState.FATAL
            try:
                await supervisor.stop(hurried=self._stopping.hurried)
            finally:
                await self.display.close(fatal=fatal)
        for task in done - {asked}:
            task.result()  # raises what ended it
        self._signals.drained()
        return self._stopping.code

    def _services(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [
            self.keeper.run,
            self.keeper.watch_loop,
            self.outbox.run,
            self._refresh_runs,
            self._reap,
            self._watch_load,
            self.display.run,
        ]

    @staticmethod
    def _spawn(run: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        return asyncio.create_task(run(), name=run.__qualname__)

    async def _drain(self, work: list[asyncio.Task[Any]]) -> None:
        self.pump.close()
        await asyncio.wait({work[-1]}, timeout=LAST_LEASE_SECONDS)
        await end_tasks(work)
        in_flight = self.pump.in_flight
        if in_flight and not self._stopping.hurried.is_set():
            log.info("draining", in_flight=in_flight, grace_seconds=self._plan.drain_seconds)
        await self.pump.drain(self._plan.drain_seconds, self._stopping.hurried)
        try:
            await asyncio.wait_for(self.outbox.drained(), LAST_DELIVERY_SECONDS)
        except TimeoutError:
            log.warning("left undelivered; the leases will end by themselves", n=len(self.outbox))

    # The engine

    async def _follow_engine(self) -> None:
        """Give each engine that comes up to the pump.

        Raises:
            EngineError: none will come up any more.
        """
        supervisor = self._parts.supervisor
        while True:
            self._down.clear()
            facts = await supervisor.wait_ready()
            self._facts = facts
            self.display.rates.restart()
            try:
                await self._read_runs()
            except QueueError as error:
                log.warning("runs not read yet", why=str(error))
            prompts = Prompts(self._parts.engine.renderer(self._parts.spec, supervisor.http))
            await prompts.warm()
            log.info(
                "engine ready",
                engine=f"{facts.engine} {facts.version}",
                model=facts.model,
                max_running=facts.max_running,
                context=facts.context_tokens,
            )
            if facts.capacity.capped:
                log.warning(
                    "the engine runs fewer requests than it was asked for",
                    why=facts.capacity.capped,
                    fix=f"gen-consumer explain --model {facts.model} -- FLAGS",
                )
            await self.client.settle()
            if not self._down.is_set():
                self.pump.engine_up(Ready(facts, prompts))
            await self._down.wait()

    def _engine_down(self, incarnation: int, reason: str) -> None:
        self.pump.engine_down()
        self.display.rates.restart()
        self.client.engine_down(incarnation, reason, died=incarnation not in self._condemned)
        self._down.set()

    def _condemn(self, reason: str) -> None:
        log.error("engine condemned", why=reason)
        self._condemned.add(self._parts.supervisor.incarnation)
        self._parts.supervisor.condemn(reason)

    async def _watch_load(self) -> None:
        seen = None
        while True:
            await asyncio.sleep(LOAD_SECONDS)
            if self.pump.ready is None:
                continue
            now, load = time.monotonic(), self._parts.supervisor.load
            # Each sample is judged once: a busy engine may take longer than a turn for the next.
            if load is None or load is seen or not load.whole:
                self.display.rates.nothing(now)
                continue
            seen, before = load, self.pump.window.size
            self.display.rates.sample(now, load.generated_tokens)
            if self.pump.window.observe(load, in_flight=self.pump.in_flight) > before:
                self.pump.nudge()

    def _generated(self, verdict: Verdict) -> None:
        self.tried[verdict] += 1
        self._signals.generated(str(verdict))

    # The queue

    def _closed(self) -> str:
        return self.catalogue.closed

    async def _refresh_runs(self) -> None:
        trouble = Once("runs cannot be read")
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            before = {active.info.run for active in self.catalogue.active}
            try:
                known = await self._read_runs()
                finished = self._plan.burst and known and await self._nothing_left()
            except QueueError as error:
                trouble.trouble(error)
                continue
            trouble.over()
            if {active.info.run for active in self.catalogue.active} - before:
                self.pump.nudge()
            if finished:
                self._refuse_to_be_done()
                await asyncio.to_thread(self._served.refuse_lost, self._parts.store)
                log.info("nothing is left to lease")
                self._stopping.ask(Exit.DONE)

    def _refuse_to_be_done(self) -> None:
        """Raise why a burst did not serve a run that it was there for, if there is one.

        Raises:
            StoreError: what the run is cannot be read, and waiting does not help.
            EngineError: the run is not for an engine such as this one.
        """
        catalogue = self.catalogue
        for error in catalogue.unreadable.values():
            raise error
        if catalogue.refused:
            raise EngineError(
                "The engine answers otherwise than the first one of the run.",
                why="Left alone: " + ", ".join(sorted(catalogue.refused)) + ".",
                fix="Serve it with the engine, release and flags that it was begun with.",
            )
        if catalogue.unequal:
            raise EngineError(
                "The run asks for equal tokens, and this engine does not promise them.",
                why="Left alone: " + ", ".join(sorted(catalogue.unequal)) + ".",
                fix="Start the consumer with --reproducible (about half as fast).",
            )

    async def _read_runs(self) -> bool:
        """Read the runs; return whether it is known now which of them the engine may serve.

        An engine that came up while they were only looked at could seem to have none.
        """
        facts, catalogue = self._facts, self.catalogue
        await (catalogue.refresh(facts) if facts else catalogue.look())
        self._served.saw(catalogue.infos, catalogue.names(facts))
        if facts is None:
            return False
        stall_seconds = self.catalogue.stall_seconds
        if stall_seconds is not None:
            self._parts.supervisor.stall_seconds = stall_seconds
        return True

    async def _nothing_left(self) -> bool:
        """Return whether a burst has come to its end: none runs, none can be leased.

        An outage of the store is waited for, with a run's prompts as with what the run is.
        """
        if self._facts is None or self.catalogue.store_away:
            return False
        if self.pump.in_flight or len(self.outbox) or len(self.keeper):
            return False
        if self._closed():
            return True
        if not self.pump.idle:
            return False
        counts = [await self._parts.runs.sample(a.info.run) for a in self.catalogue.active]
        return all(count.queued + count.waiting == 0 for count in counts)

    async def _reap(self) -> None:
        trouble = Once("expired leases cannot be reaped")
        while True:
            await asyncio.sleep(REAP_SECONDS)
            for info in [info for info in self.catalogue.infos if info.state not in OVER]:
                try:
                    await self._reap_run(info)
                    trouble.over()
                except QueueError as error:
                    trouble.trouble(error)

    async def _reap_run(self, info: RunInfo) -> None:
        queue = self.catalogue.queue_of(info)
        while (await queue.reap()).more:
            pass

    def _stop_job_from_thread(self) -> Callable[[str], None]:
        loop = asyncio.get_running_loop()
        return lambda job: _soon(loop, lambda: self._stop_job(job))

    def _stop_job(self, job: str) -> None:
        for info in self.catalogue.infos:
            item = item_of_job(info.run, job)
            if item is not None and self.pump.stop_item(info.run, item):
                log.info("item stopped by command", run=info.run, item=item)
                return
        log.warning("stop-job ignored: not generating it", job=job)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
