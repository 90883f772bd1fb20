"""Trials on a run's real items: what a trial generates is committed, so no token is thrown away.

A trial is a whole consumer (leases, pump, outbox, drain) with the trial's engine in it. Its
measurement ends before it does: what is in flight is finished and committed first.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from common.errors import EngineError, Exit
from common.redis_client import connect_sync
from consumer.daemon import Consumer, Parts, Plan
from consumer.engine.life import UnfitError
from consumer.engine.process import mark_start
from consumer.engine.states import EngineState
from consumer.engine.supervisor import Supervisor
from consumer.leases.outbox import Tally
from consumer.reporter import Reporter
from consumer.start import worker_name
from consumer.stopping import Stopping
from consumer.tuning.loop import CardMeans, Watch, measure
from consumer.tuning.results import Outcome, Trial
from consumer.tuning.steady import Meter, Pace
from consumer.tuning.trial import (
    Checks,
    Order,
    default_window,
    measured,
    once_only,
    passed,
    ran_out_of_memory,
    refused,
    to_the_end,
    trial_spec,
)
from consumer.tuning.withheld import stop_before, stop_now, stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis.asyncio

    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.queue.run_state import Runs
    from common.settings import Settings
    from consumer.engine.api import Engine, EngineFacts, EngineSpec
    from consumer.engine.honesty import Honesty

_POLL_SECONDS = 0.1
_WITHHELD_SECONDS = 3.0  # the runs are read each second; a first look may fail
_NOT_HANDED_OUT = "items wait, but none was handed out: gen-sink is behind"
_NOTHING_LEFT = "the run has nothing more to lease"
_DIFFERS = "it answers otherwise than the run's first engine"
_DRAIN_SECONDS = 20.0  # kept for the end of a trial, until one has shown how long it takes


@dataclass(slots=True)
class LiveLoad:
    """Runs trials that work on a run. ``hurry``: set it, and what is in flight is given back."""

    settings: Settings
    engine: Engine
    spec: EngineSpec
    run: RunName
    redis: redis.asyncio.Redis
    runs: Runs
    store: ObjectStore
    pace: Pace
    checks: Checks
    port: Callable[[], int]
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Callable[[], float] = time.monotonic
    seen: Callable[[str, Meter | None], None] = lambda _state, _meter: None
    _drained_seconds: float = _DRAIN_SECONDS

    async def __call__(self, order: Order) -> Trial:
        """See :class:`consumer.tuning.trial.Tried`.

        Raises:
            QueueError, StoreError: the run cannot be worked on.
        """
        began = self.clock()
        self.seen("starting", None)
        spec = trial_spec(self.spec, order.setting, self.port())
        check = self.checks.fresh(0)
        one = _One(self, spec, order, check)
        stop = await stop_before(self.runs, self.run)
        trial = await one.tried() if stop is None else stopped(stop)
        if trial.outcome is not Outcome.DISHONEST and one.facts is not None:
            self.checks.keep(check)
            trial = replace(trial, honesty=passed(check) if check else "not checked")
        kept = one.tally
        return replace(
            trial,
            flags=order.setting.flags,
            window=order.setting.window,
            point=dict(order.setting.point),
            predicted=order.setting.predicted,
            start_seconds=one.start_seconds,
            seconds=self.clock() - began,
            end_seconds=one.end_seconds,
            kept=kept.succeeded,
            answered=one.answered,
            failed=kept.failed,
            output_tokens=kept.completion_tokens / max(1, kept.succeeded),
            prompt_tokens=kept.prompt_tokens / max(1, kept.succeeded),
            cached_share=kept.cached_tokens / max(1, kept.prompt_tokens),
        )


class _One:
    """One trial's consumer."""

    def __init__(
        self, live: LiveLoad, spec: EngineSpec, order: Order, check: Honesty | None
    ) -> None:
        self._live = live
        self._spec = spec
        self._order = order
        self._check = check
        self._stopping = Stopping()
        self.start_seconds = 0.0
        self.facts: EngineFacts | None = None
        self.end_seconds = 0.0
        self._consumer: Consumer | None = None

    @property
    def tally(self) -> Tally:
        """What the queue took of it."""
        return self._consumer.outbox.tally if self._consumer else Tally()

    @property
    def answered(self) -> int:
        """How many tries ended."""
        return sum(self._consumer.tried.values()) if self._consumer else 0

    async def tried(self) -> Trial:
        live = self._live
        supervisor = Supervisor(
            live.engine, self._spec, budget=once_only(self._order.start_seconds), check=self._check
        )
        name = worker_name(self._spec)
        await asyncio.to_thread(mark_start, self._spec)
        parts = Parts(
            redis=live.redis,
            runs=live.runs,
            limits=live.settings.limits(),
            store=live.store,
            engine=live.engine,
            spec=self._spec,
            supervisor=supervisor,
            reporter=await asyncio.to_thread(
                lambda: Reporter.connect(connect_sync(live.settings, name="reporter"), name)
            ),
            honesty=self._check,
        )
        plan = Plan(
            runs=(live.run,),
            renew_seconds=live.settings.renew_seconds,
            drain_seconds=live.settings.drain_seconds,
            engine_on_trial=True,
        )
        consumer = self._consumer = Consumer(parts, plan, self._stopping)
        work = asyncio.create_task(consumer.run(), name="trial on real items")
        trial: Trial | None = None
        try:
            trial = await self._measured(consumer, supervisor, work)
        finally:
            ended = await to_the_end(self._drain(work, trial.outcome if trial else None))
        if isinstance(ended, UnfitError):
            return Trial(Outcome.DISHONEST, ended.what, honesty=str(ended))
        if isinstance(ended, EngineError):
            return replace(refused(ended, self._spec), rungs=trial.rungs)
        if ended is not None:
            raise ended
        # The consumer may have been asked to end before it said of what its engine had died.
        if trial.outcome is Outcome.CRASHED and ran_out_of_memory(self._spec):
            return replace(trial, outcome=Outcome.MEMORY)
        return trial

    async def _measured(
        self, consumer: Consumer, supervisor: Supervisor, work: asyncio.Task[Exit]
    ) -> Trial:
        live, began = self._live, self._live.clock()
        until = self._order.until - live._drained_seconds  # noqa: SLF001 - of this module
        over = (EngineState.READY, EngineState.FATAL)
        while supervisor.state not in over and not work.done():
            if live.clock() >= until:
                return Trial(Outcome.LATE, "the round's minutes were over before it was ready")
            await asyncio.sleep(_POLL_SECONDS)
        self.start_seconds = live.clock() - began
        facts = self.facts = supervisor.facts if supervisor.state is EngineState.READY else None
        if facts is None:
            return Trial(Outcome.CRASHED, "it did not come up")
        window = self._order.setting.window or default_window(facts)
        meter, card = Meter(min(window, facts.max_running), live.pace), CardMeans(self._spec.gpu)
        before: list[int] = []

        def seen(now: Meter) -> None:
            if now.steady and not before:
                before.append(self.answered)
            live.seen("steady" if now.steady else "ramp", now)

        watch = Watch(
            look=lambda: live.engine.load(supervisor.http),
            clock=live.clock,
            until=until,
            best=self._order.best,
            down=lambda: "" if supervisor.state is EngineState.READY else "the engine went down",
            exhausted=lambda: consumer.pump.starved,
            over=lambda: _NOTHING_LEFT if consumer.pump.idle else "",
            withheld=_withheld(consumer, live.clock),
            seen=seen,
        )
        try:
            outcome, why = await measure(meter, live.pace, watch, card)
        finally:
            power, busy = card.stop()
        done = self.answered - (before[0] if before else self.answered)
        trial = measured(outcome, why, meter, done, facts)
        trial = replace(trial, power_watts=power, utilization=busy)
        return trial if outcome is Outcome.CRASHED else await self._served(consumer, facts, trial)

    async def _served(self, consumer: Consumer, facts: EngineFacts, trial: Trial) -> Trial:
        """Return the trial, as what it is where the run handed its engine nothing."""
        live, catalogue = self._live, consumer.catalogue
        if live.run in catalogue.refused:
            info = next(one for one in catalogue.infos if one.run == live.run)
            words = await consumer.agreement.objection(info)
            return replace(trial, outcome=Outcome.DISHONEST, why=_DIFFERS, honesty=words)
        stop = stop_now(catalogue, live.run, facts)
        if stop is not None and trial.outcome is not Outcome.OK:
            return stopped(stop, trial)
        if not consumer.pump.starved or not (await live.runs.sample(live.run)).queued:
            over = trial.outcome is Outcome.LATE and trial.why == _NOTHING_LEFT
            return replace(trial, fix=f"gen-producer status {live.run}") if over else trial
        # The run was stopped a moment ago, or its results wait for the sink.
        stop = stop or await stop_before(live.runs, live.run)
        if stop is not None:
            return stopped(stop, trial)
        return replace(trial, outcome=Outcome.STOPPED, why=_NOT_HANDED_OUT)

    async def _drain(
        self, work: asyncio.Task[Exit], outcome: Outcome | None
    ) -> BaseException | None:
        """Finish and commit what is in flight, or give it back where there is no time.

        An engine that hangs finishes nothing, and says nothing of how long that takes.
        """
        live, began = self._live, self._live.clock()
        live.seen("finishing what is in flight", None)
        self._stopping.ask(Exit.DONE)
        hurried = asyncio.create_task(live.hurry.wait())
        left = min(live.settings.drain_seconds, max(0.0, self._order.until - live.clock()))
        if outcome is not Outcome.HUNG:
            await asyncio.wait({work, hurried}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not work.done():
            self._stopping.hurried.set()
        elif outcome in (Outcome.OK, Outcome.CUT):
            live._drained_seconds = max(_POLL_SECONDS, 1.2 * (live.clock() - began))  # noqa: SLF001 - of this module
        given_up = live.clock()
        await asyncio.gather(work, return_exceptions=True)
        self.end_seconds = live.clock() - given_up
        return work.exception()


def _withheld(consumer: Consumer, clock: Callable[[], float]) -> Callable[[], str]:
    """Return what says why a consumer has been given nothing to lease for a while; else ""."""
    since: list[float] = []

    def why() -> str:
        closed = consumer.catalogue.closed if consumer.pump.ready is not None else ""
        if not closed:
            since.clear()
            return ""
        since.append(clock())
        return closed if since[-1] - since[0] > _WITHHELD_SECONDS else ""

    return why
