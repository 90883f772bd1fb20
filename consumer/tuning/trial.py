"""One trial: a real server, started by our own supervisor, checked, loaded, measured and ended."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from common.errors import EngineError
from consumer.engine.failures import recognise
from consumer.engine.honesty import Honesty
from consumer.engine.honesty_texts import QUESTIONS
from consumer.engine.launch import refuse_reserved
from consumer.engine.life import StartBudget, UnfitError
from consumer.engine.process import last_start, log_path, mark_start, tail
from consumer.engine.supervisor import Supervisor
from consumer.tuning.loop import CardMeans, ClosedLoop, Tally, Watch, measure
from consumer.tuning.prompts import Feed, Sample, random_ids
from consumer.tuning.results import Outcome, Trial
from consumer.tuning.steady import Meter, Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from consumer.engine.api import Engine, EngineFacts, EngineSpec
    from consumer.engine.honesty_paths import Probe
    from consumer.tuning.space import Setting

T = TypeVar("T")
_FOREVER = 1e9
_KILL_SECONDS = 1.0
_HONESTY_TOKENS = 350  # of each prompt of random ids: as many as the check's texts have


@dataclass(frozen=True, slots=True)
class Order:
    """What one trial is to do. Times by the round's clock."""

    setting: Setting
    until: float
    start_seconds: float  # longest start
    best: Mapping[float, float] = field(default_factory=dict)  # to cut by; empty: it is not cut
    held_out: bool = False
    seed: int = 0


class Tried(Protocol):
    """What runs trials: with a load of our own, or with a run's real items."""

    async def __call__(self, order: Order) -> Trial:
        """Run one trial to its end; nothing of its server is left.

        Raises:
            ConflictError: somebody else has the GPU.
        """
        ...


@dataclass(slots=True)
class Checks:
    """The honesty check of a round: each server must agree with itself, and with the first one."""

    on: bool = True
    random_weights: bool = False
    record: tuple[Probe, ...] = ()

    def fresh(self, vocab_size: int) -> Honesty | None:
        """Return the check for one server."""
        if not self.on:
            return None
        ids = None
        if self.random_weights:
            ids = {
                f"random tokens {n}": random_ids(_HONESTY_TOKENS, vocab_size, n)
                for n in range(len(QUESTIONS))
            }
        return Honesty(reference=self.record, ids=ids)

    def keep(self, check: Honesty | None) -> None:
        """Take the first accepted server's answers as the reference for all others."""
        if check is not None and not self.record:
            self.record = tuple(check.record)


@dataclass(slots=True)
class OwnLoad:
    """Runs trials with prompts of its own; their answers are thrown away."""

    engine: Engine
    spec: EngineSpec  # the base: its flags are every trial's
    sample: Sample
    pace: Pace
    checks: Checks
    port: Callable[[], int]
    clock: Callable[[], float] = time.monotonic
    seen: Callable[[str, Meter | None], None] = lambda _state, _meter: None

    async def __call__(self, order: Order) -> Trial:
        """See :class:`Tried`."""
        began = self.clock()
        spec = trial_spec(self.spec, order.setting, self.port())
        running = Running(self.engine, spec, self.checks, order, self.clock)
        self.seen("starting", None)
        tally, trial = Tally(), Trial(Outcome.CRASHED)
        try:
            facts = await running.ready()
            if isinstance(facts, Trial):
                trial = facts
            else:
                trial, tally = await self._loaded(running, facts, order)
        finally:
            ending = self.clock()
            await to_the_end(running.end())
        trial = with_setting(trial, order.setting, running)
        now = self.clock()
        return replace(with_tally(trial, tally), seconds=now - began, end_seconds=now - ending)

    async def _loaded(
        self, running: Running, facts: EngineFacts, order: Order
    ) -> tuple[Trial, Tally]:
        window = order.setting.window or default_window(facts)
        feed = Feed(
            lambda: self.sample.stream(facts, held_out=order.held_out, seed=order.seed),
            facts,
            wave=window,
            output_tokens=self.sample.output_tokens,
        )
        http = running.supervisor.http
        to_the_end = self.sample.random_tokens is not None
        loop = ClosedLoop(self.engine, http, feed, to_the_end=to_the_end)
        running.in_flight = lambda: loop.in_flight
        meter = Meter(min(window, facts.max_running), self.pace)
        card = CardMeans(self.spec.gpu)
        before = Tally()

        def seen(now: Meter) -> None:
            if now.steady and not before.why:  # counted from here on
                before.answered, before.why = loop.tally.answered, "steady"
            self.seen("steady" if now.steady else "ramp", now)

        watch = Watch(
            look=lambda: self.engine.load(http),
            clock=self.clock,
            until=order.until,
            best=order.best,
            down=lambda: running.down,
            failing=lambda: loop.tally.why if loop.tally.failing else "",
            seen=seen,
        )
        loop.start(window)
        try:
            outcome, why = await measure(meter, self.pace, watch, card)
        finally:
            await loop.stop()
            power, busy = card.stop()
        if outcome is Outcome.CRASHED and ran_out_of_memory(running.spec):
            outcome = Outcome.MEMORY
        done = loop.tally.answered - before.answered
        trial = measured(outcome, why, meter, done, facts)
        return replace(trial, power_watts=power, utilization=busy), loop.tally


@dataclass(slots=True)
class Running:
    """A trial's server, from its start to its end."""

    engine: Engine
    spec: EngineSpec
    checks: Checks
    order: Order
    clock: Callable[[], float]
    down: str = ""
    honesty: str = "not checked"
    start_seconds: float = 0.0
    in_flight: Callable[[], int] = lambda: 0
    _supervisor: Supervisor | None = None

    @property
    def supervisor(self) -> Supervisor:
        """The server's supervisor; after :meth:`ready`."""
        assert self._supervisor is not None
        return self._supervisor

    async def ready(self) -> EngineFacts | Trial:
        """Start the server and check it; return what it is, or what came of the trial.

        Raises:
            ConflictError: somebody else has the GPU.
        """
        began = self.clock()
        check: list[Honesty] = []

        async def honest(
            engine: Engine, http: object, spec: EngineSpec, facts: EngineFacts
        ) -> None:
            one = self.checks.fresh(facts.vocab_size)
            if one is not None:
                check.append(one)
                await one(engine, http, spec, facts)  # type: ignore[arg-type]  # as the supervisor has it

        self._supervisor = Supervisor(
            self.engine,
            self.spec,
            budget=once_only(self.order.start_seconds),
            stall_seconds=_FOREVER,  # the meter sees a stall, and makes a result of it
            in_flight=lambda: self.in_flight(),  # noqa: PLW0108 - it is set later
            on_down=lambda _incarnation, reason: self._went_down(reason),
            check=honest,
        )
        # A server that does not come to its start has said nothing, either.
        await asyncio.to_thread(mark_start, self.spec)
        await self._supervisor.start()
        try:
            async with asyncio.timeout(max(0.0, self.order.until - self.clock())):
                facts = await self._supervisor.wait_ready()
        except TimeoutError:
            return Trial(Outcome.LATE, "the round's minutes were over before it was ready")
        except EngineError as error:
            trial = refused(error, self.spec)
            self.honesty = trial.honesty or self.honesty
            return trial
        finally:
            self.start_seconds = self.clock() - began
        if check:
            self.honesty = passed(check[0])
            self.checks.keep(check[0])
        return facts

    async def end(self) -> None:
        """End the server at once; nothing of it is left."""
        if self._supervisor is not None:
            await self._supervisor.stop(now=True)

    def _went_down(self, reason: str) -> None:
        self.down = reason


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Return what comes of ``work``, which is done whole: what was cancelled meanwhile is then.

    For the end of what would otherwise be left running, with nobody to look after it.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


def passed(check: Honesty) -> str:
    """Return what a trial says of a check that accepted its server."""
    doubts = check.paths.doubts if check.paths else []
    return " ".join(["passed.", *doubts]) if doubts else "passed"


def refused(error: EngineError, spec: EngineSpec) -> Trial:
    """Return what came of a trial whose engine is beyond help."""
    if isinstance(error, UnfitError):
        return Trial(Outcome.DISHONEST, error.what, honesty=str(error))
    if "not ready within" in error.what:
        return Trial(Outcome.HUNG, error.what)
    outcome = Outcome.MEMORY if ran_out_of_memory(spec) else Outcome.CRASHED
    words = error.why.splitlines()
    return Trial(outcome, f"{error.what} {words[-1] if words else ''}".strip())


def ran_out_of_memory(spec: EngineSpec) -> bool:
    """Return whether the last words of this start say so (reads its log)."""
    known = recognise(last_start(tail(log_path(spec)))[-80:])
    return known is not None and known.memory


def once_only(start_seconds: float) -> StartBudget:
    """Return the budget of a server that is started once, and ended at once."""
    return StartBudget(
        start_seconds=start_seconds,
        young_seconds=_FOREVER,
        attempts=1,
        lives=1,
        kill_seconds=_KILL_SECONDS,
        stop_seconds=_KILL_SECONDS,
    )


def trial_spec(base: EngineSpec, setting: Setting, port: int) -> EngineSpec:
    """Return what a trial's server is started with.

    Raises:
        UsageError: a base flag is one that the consumer sets itself.
    """
    refuse_reserved(base.flags)
    return replace(base, flags=(*base.flags, *setting.flags), window=setting.window, port=port)


def default_window(facts: EngineFacts) -> int:
    """Return the requests in flight where no window is tried: the limit, and a queue before it."""
    return facts.max_running + max(1, facts.max_running // 4)


def measured(outcome: Outcome, why: str, meter: Meter, answered: int, facts: EngineFacts) -> Trial:
    """Return what the meter saw; ``answered``: requests in the steady state."""
    seconds = meter.age_seconds
    finished = max(1, answered)
    return Trial(
        outcome,
        why,
        tokens_per_second=meter.rate,
        requests_per_second=answered / seconds if seconds else 0.0,
        measured_seconds=seconds,
        max_running=facts.max_running,
        running=meter.running,
        retractions=meter.retractions,
        retracted_share=meter.retractions / finished,
        most_usage=meter.most_usage,
        kv_tokens=facts.kv_tokens,
        state_slots=facts.capacity.state_slots,
        accept_length=meter.accept_length,
        version=f"{facts.engine} {facts.version}",
        rungs={f"{age:g}": rate for age, rate in meter.rungs.items()},
    )


def with_setting(trial: Trial, setting: Setting, running: Running) -> Trial:
    """Return the trial with what was tried, and how its server started."""
    return replace(
        trial,
        flags=setting.flags,
        window=setting.window,
        point=dict(setting.point),
        changes_outputs=setting.changes_outputs,
        predicted=setting.predicted,
        start_seconds=running.start_seconds,
        honesty=running.honesty,
    )


def with_tally(trial: Trial, tally: Tally) -> Trial:
    """Return the trial with what was answered."""
    if not tally.answered:
        return replace(trial, failed=tally.failed)
    return replace(
        trial,
        answered=tally.answered,
        failed=tally.failed,
        prompt_tokens=tally.prompt_tokens / tally.answered,
        output_tokens=tally.output_tokens / tally.answered,
        cached_share=tally.cached_tokens / max(1, tally.prompt_tokens),
    )


def random_weights(flags: Sequence[str]) -> bool:
    """Return whether flags load random weights, which know no language."""
    return "dummy" in flags or "--load-format=dummy" in flags
