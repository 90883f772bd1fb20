"""A closed loop: so many requests in flight at one engine, and a watch on what comes of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumer.engine.gpu_watch import GpuWatch
from consumer.generation.verdict import Fault, examine
from consumer.tuning.results import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from consumer.engine.api import Engine, EngineLoad, Http
    from consumer.tuning.prompts import Feed
    from consumer.tuning.steady import Meter, Pace

REQUEST_SECONDS = 3600.0
PAUSE_SECONDS = 0.2  # after a refusal, so that an engine that refuses all is not stormed
MOST_FAILED = 0.05  # of the requests, for a trial that counts


@dataclass(slots=True)
class Tally:
    """What was answered."""

    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    why: str = ""  # the last failure

    @property
    def failing(self) -> bool:
        """Whether so much fails that the rate means nothing."""
        return self.failed > 3 and self.failed > MOST_FAILED * (self.answered + self.failed)


class ClosedLoop:
    """Keeps ``window`` requests in flight until :meth:`stop`. Judges whole answers, no texts."""

    def __init__(self, engine: Engine, http: Http, feed: Feed, *, to_the_end: bool) -> None:
        """Take what is asked of whom; ``to_the_end``: answers may not stop by themselves."""
        self._engine = engine
        self._http = http
        self._feed = feed
        self._to_the_end = to_the_end
        self._tasks: list[asyncio.Task[None]] = []
        self.tally = Tally()
        self.in_flight = 0

    def start(self, window: int) -> None:
        """Begin."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(window)]

    async def stop(self) -> None:
        """Give up what is in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while (request := self._feed.next()) is not None:
            path, body = self._engine.generate(request)
            if self._to_the_end:
                body["sampling_params"]["ignore_eos"] = True
            self.in_flight += 1
            try:
                reply = await self._http.post(path, body, REQUEST_SECONDS)
            finally:
                self.in_flight -= 1
            answer = examine(reply, request, self._engine.read)
            if isinstance(answer, Fault):
                self.tally.failed += 1
                self.tally.why = f"{answer.verdict}: {answer.text}"
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self.tally.answered += 1
            self.tally.prompt_tokens += answer.prompt_tokens
            self.tally.output_tokens += answer.completion_tokens
            self.tally.cached_tokens += answer.cached_tokens


@dataclass(slots=True)
class CardMeans:
    """Power and utilization of the card in the steady state; nothing where NVML is not."""

    gpu: int | None
    _watch: GpuWatch = field(init=False)
    _power: list[float] = field(default_factory=list)
    _busy: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._watch = GpuWatch(self.gpu, look_seconds=1.0)
        self._watch.start()

    def look(self) -> None:
        """Count the newest look in."""
        if (health := self._watch.health) is None:
            return
        if health.power_watts is not None:
            self._power.append(health.power_watts)
        if health.utilization is not None:
            self._busy.append(health.utilization)

    def stop(self) -> tuple[float | None, float | None]:
        """Look no more; return mean power and utilization."""
        self._watch.stop()
        means = [sum(some) / len(some) if some else None for some in (self._power, self._busy)]
        return means[0], means[1]


@dataclass(frozen=True, slots=True)
class Watch:
    """What ends the measurement of a trial, beside its measure being full."""

    look: Callable[[], Awaitable[EngineLoad | None]]
    clock: Callable[[], float]
    until: float  # by the clock
    best: Mapping[float, float] = field(default_factory=dict)  # the best trial's rate at each age
    down: Callable[[], str] = lambda: ""  # why the engine is no more
    exhausted: Callable[[], bool] = lambda: False  # nothing new is left to ask
    over: Callable[[], str] = lambda: ""  # why no more can be asked at all
    withheld: Callable[[], str] = lambda: ""  # why nothing is handed out, by no fault of the trial
    failing: Callable[[], str] = lambda: ""
    seen: Callable[[Meter], None] = lambda _meter: None  # for the table


async def measure(meter: Meter, pace: Pace, watch: Watch, card: CardMeans) -> tuple[Outcome, str]:
    """Sample the engine until the trial is measured, cut or over; return how, and why."""
    began = watch.clock()
    while True:
        load = await watch.look()
        now = watch.clock()
        if load is not None and load.whole:
            meter.observe(now, load)
        if meter.steady:
            card.look()
        watch.seen(meter)
        if why := watch.down() or watch.failing():
            return Outcome.CRASHED, why
        if why := watch.withheld():
            return Outcome.STOPPED, why
        if meter.behind(watch.best):
            return Outcome.CUT, "far behind the best at the same age"
        enough = meter.age_seconds >= pace.least_seconds
        if meter.age_seconds >= pace.measure_seconds or (enough and watch.exhausted()):
            return Outcome.OK, ""
        if meter.silent_seconds(now, since=began) > pace.stall_seconds:
            return Outcome.HUNG, f"nothing moved for {pace.stall_seconds:g} s"
        late = watch.over() or ("the round's minutes were over" if now >= watch.until else "")
        if late:
            return (Outcome.OK, "") if enough else (Outcome.LATE, late)
        await asyncio.sleep(pace.sample_seconds)
