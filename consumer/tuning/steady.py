"""The steady state of an engine under load: when it begins, and its rate between counters. Pure.

The ramp is left out: the first requests wait for their prefill, and a rate over the whole of a
short trial says more about that than about the setting. So is the time in which a full engine
still gets faster, since the first server on a machine compiles kernels as it meets new shapes:
the defaults, which are tried first, would be measured too low and every gain over them too high.
The engine's counters move in jumps (every 40 steps with SGLang), so a rate is taken between two
moments at which they moved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consumer.engine.api import EngineLoad

FULL = 0.95  # of what can run, or the ramp goes on
RISE = 1.03  # a rate this much over the one before is still rising


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the parts of a trial take."""

    sample_seconds: float = 0.5  # each costs the server a page of metrics
    settle_seconds: float = 2.0  # after the window is full, or has stopped to fill
    rise_seconds: float = 3.0  # two stretches of this length must show the same rate, or less
    warm_seconds: float = 30.0  # longest wait for that; then it is measured as it is
    ramp_seconds: float = 60.0  # longest ramp, likewise
    measure_seconds: float = 30.0
    least_seconds: float = 8.0  # less tells nothing
    stall_seconds: float = 45.0  # no sign of work for so long: it hangs
    stop_seconds: float = 8.0  # kept to end a server within the round
    start_factor: float = 3.0  # a start may take so many times the defaults'
    start_least_seconds: float = 60.0  # but no less than this is allowed
    # At so many steady seconds a trial must have this share of the best one's rate at that age.
    rungs: tuple[tuple[float, float], ...] = ((4.0, 0.5), (8.0, 0.7), (16.0, 0.85))


@dataclass(slots=True)
class Meter:
    """Takes samples of one engine under load.

    Args:
        target: how many requests can run at once: the window, or the engine's limit if less.
        pace: when the ramp is over, and the ages at which rates are noted.
    """

    target: int
    pace: Pace
    rungs: dict[float, float] = field(default_factory=dict)  # age -> rate so far
    most_usage: float = 0.0
    _began: float | None = None
    _full_at: float | None = None
    _warming: list[tuple[float, int]] = field(default_factory=list)  # the moves since it is full
    _grew_at: float = 0.0
    _most: int = 0
    _steady: tuple[float, EngineLoad] | None = None
    _first: tuple[float, int] | None = None  # the first move of the counter in the steady state
    _last: tuple[float, int] | None = None
    _loads: list[EngineLoad] = field(default_factory=list)
    _work: int = -1
    _worked_at: float = 0.0

    @property
    def steady(self) -> bool:
        """Whether the ramp is over."""
        return self._steady is not None

    @property
    def age_seconds(self) -> float:
        """For how long the rate has been measured."""
        return self._last[0] - self._first[0] if self._first and self._last else 0.0

    @property
    def rate(self) -> float:
        """Output tokens a second in the steady state; 0 before two moves of the counter."""
        if not (self._first and self._last) or self.age_seconds <= 0:
            return 0.0
        return _rate(self._first, self._last)

    @property
    def retractions(self) -> int:
        """How many requests were retracted in the steady state."""
        if not self._loads or self._steady is None:
            return 0
        return self._loads[-1].retractions - self._steady[1].retractions

    @property
    def running(self) -> float:
        """Running requests in the steady state, on average."""
        return _mean([load.running for load in self._loads])

    @property
    def accept_length(self) -> float | None:
        """Tokens that a verification of drafts yields, where there are drafts."""
        found = [load.accept_length for load in self._loads if load.accept_length]
        return _mean(found) if found else None

    def silent_seconds(self, now: float, *, since: float) -> float:
        """For how long nothing has moved; ``since``: when the first request was sent."""
        return now - (since if self._began is None else self._worked_at)

    def observe(self, now: float, load: EngineLoad) -> None:
        """Take one sample."""
        if self._began is None:
            self._began = self._grew_at = self._worked_at = now
        work = load.work + load.generated_tokens
        if work != self._work:
            self._work, self._worked_at = work, now
        if self._steady is None:
            self._ramp(now, load)
            return
        self._loads.append(load)
        self.most_usage = max(self.most_usage, load.token_usage)
        seen = self._last[1] if self._last else self._steady[1].generated_tokens
        if load.generated_tokens == seen:
            return
        moment = (now, load.generated_tokens)
        if self._first is None:
            self._first = moment
        self._last = moment
        for age, _share in self.pace.rungs:
            if age not in self.rungs and self.age_seconds >= age:
                self.rungs[age] = self.rate

    def behind(self, best: Mapping[float, float]) -> bool:
        """Whether it is so far behind the best trial at the same age that it cannot win."""
        return any(
            self.rungs[age] < share * best[age]
            for age, share in self.pace.rungs
            if age in self.rungs and age in best
        )

    def _ramp(self, now: float, load: EngineLoad) -> None:
        if load.running > self._most:
            self._most, self._grew_at = load.running, now
        began = self._began or 0.0
        full = load.running >= FULL * self.target
        # What waits inside the engine while no more run waits for a place, not for its prefill.
        capped = load.running > 0 and now - self._grew_at >= 2 * self.pace.settle_seconds
        if self._full_at is None and load.generated_tokens and (full or capped):
            self._full_at = now
        if self._full_at is None:
            if now - began >= self.pace.ramp_seconds:
                self._steady = (now, load)
            return
        if not self._warming or load.generated_tokens != self._warming[-1][1]:
            self._warming.append((now, load.generated_tokens))
        full_seconds = now - self._full_at
        level = full_seconds >= self.pace.settle_seconds and not self._rising()
        if level or full_seconds >= self.pace.warm_seconds:
            self._steady = (now, load)

    def _rising(self) -> bool:
        """Whether the rate still grows, or cannot be told yet."""
        last = self._warming[-1]
        middle = _latest(self._warming, last[0] - self.pace.rise_seconds)
        first = _latest(self._warming, middle[0] - self.pace.rise_seconds) if middle else None
        if middle is None or first is None:
            return True
        return _rate(middle, last) > RISE * _rate(first, middle)


def _latest(moves: list[tuple[float, int]], until: float) -> tuple[float, int] | None:
    return next((move for move in reversed(moves) if move[0] <= until), None)


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    return (last[1] - first[1]) / (last[0] - first[0])


def _mean(values: list[int] | list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
