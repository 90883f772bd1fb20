"""Simulated engines under a simulated clock: capacity by the arithmetic, speed by the roofline."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from consumer.tuning.cards import card_named
from consumer.tuning.memory import budget
from consumer.tuning.results import Outcome, Trial
from consumer.tuning.roofline import roofline
from consumer.tuning.serving import serving_of
from consumer.tuning.space import Allowed, Lengths, Space
from tests.support.boots import hybrid

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer.tuning.space import Setting
    from consumer.tuning.trial import Order

BASE = ("--language-model-only", "--load-format", "dummy")
CARD = card_named("H200")
SHAPE = hybrid()


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def space(baseline: Trial, *, state_dtype: bool = False) -> Space:
    return Space(
        base=BASE,
        lengths=Lengths(256, 256),
        default_running=max(1, baseline.max_running),
        shape=SHAPE,
        memory_bytes=CARD.memory_bytes,
        card=CARD,
        allowed=Allowed(state_dtype=state_dtype),
    )


@dataclass
class SimulatedServers:
    """Tries settings in no time. ``bad``: flags that end otherwise than well."""

    clock: Clock
    start_seconds: float = 90.0
    measure_seconds: float = 20.0
    bad: dict[str, Outcome] = field(default_factory=dict)
    held_out: Callable[[Setting, float], float] = lambda _setting, rate: rate
    seen: list[Order] = field(default_factory=list)
    before: Callable[[Order], None] = lambda _order: None  # may raise: a kill

    async def __call__(self, order: Order) -> Trial:
        self.before(order)
        self.seen.append(order)
        began = self.clock.now
        setting = order.setting
        trial = replace(
            self._trial(order),
            flags=setting.flags,
            window=setting.window,
            point=dict(setting.point),
            changes_outputs=setting.changes_outputs,
            version="sglang 0.5.17",
            honesty="passed",
        )
        took = trial.start_seconds + trial.measured_seconds + 10
        if began + took > order.until:
            self.clock.now = max(began, order.until)
            return replace(trial, outcome=Outcome.LATE, why="the minutes were over")
        self.clock.now += took
        return replace(trial, seconds=took)

    def _trial(self, order: Order) -> Trial:
        flags = (*BASE, *order.setting.flags)
        ends = next((end for flag, end in self.bad.items() if flag in flags), Outcome.OK)
        serving = serving_of(flags)
        one = budget(SHAPE, CARD.memory_bytes, serving)
        if not one.fits:
            ends = Outcome.CRASHED
        if ends not in (Outcome.OK, Outcome.DISHONEST):
            return Trial(ends, start_seconds=self.start_seconds)
        running = min(one.running, order.setting.window or one.running)
        bound = roofline(
            SHAPE, CARD, serving, running=running, prompt_tokens=256, output_tokens=256
        )
        rate = 0.65 * bound.tokens_per_second
        if ends is Outcome.DISHONEST:
            return Trial(ends, start_seconds=self.start_seconds)
        if order.held_out:
            rate = self.held_out(order.setting, rate)
        rungs = {"4": rate, "8": rate, "16": rate}
        measured = self.measure_seconds
        if rate < 0.5 * order.best.get(4.0, 0.0):
            ends, measured = Outcome.CUT, 4.0
        return Trial(
            ends,
            tokens_per_second=rate,
            requests_per_second=rate / 256,
            start_seconds=self.start_seconds,
            measured_seconds=measured,
            max_running=one.running,
            running=float(running),
            answered=500,
            output_tokens=256.0,
            rungs=rungs,
        )
