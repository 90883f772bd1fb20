"""Is the engine alive? Liveness is progress, never a health endpoint alone.

A health endpoint stays 200 over a dead scheduler, and turns 503 under a healthy but busy one. What
cannot lie is work: while requests are in flight, counters grow or answers come back.
Pure: samples and times go in, a judgement comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumer.engine.api import EngineLoad


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known at one moment."""

    at: float  # monotonic seconds
    in_flight: int  # requests that this process waits for
    answered: int  # answers that came back since the engine's start
    load: EngineLoad | None  # None: the engine did not answer the question


class Liveness:
    """Judges one incarnation of an engine from its samples, in order.

    Args:
        stall_seconds: longest without any work while requests are in flight; may be set anew.
        silent_seconds: longest without answering questions while nothing is in flight.
        lost_seconds: longest that the engine may call itself idle while we wait for answers.
    """

    def __init__(
        self, stall_seconds: float, *, silent_seconds: float = 60.0, lost_seconds: float = 30.0
    ) -> None:
        self.stall_seconds = stall_seconds
        self.silent_seconds = max(silent_seconds, 1.0)
        self._lost_seconds = lost_seconds
        self._work = -1
        self._answered = -1
        self._moved: float | None = None  # when work was last seen, or there was none to do
        self._spoke: float | None = None  # when the engine last answered a question
        self._at_work: float | None = None  # when the engine last did not call itself idle

    @property
    def lost_seconds(self) -> float:
        """Never longer than the stall time."""
        return min(self._lost_seconds, self.stall_seconds)

    def stuck(self, sample: Sample) -> str:
        """Take the next sample; return why the engine counts as stuck, or ``""``."""
        self._take(sample)
        at, waits = sample.at, sample.in_flight > 0
        if waits and at - _or(self._moved, at) >= self.stall_seconds:
            return (
                f"no token and no answer for {at - _or(self._moved, at):.0f} s"
                f" with {sample.in_flight} requests in flight"
            )
        if waits and at - _or(self._at_work, at) >= self.lost_seconds:
            return f"the engine says that it is idle, but {sample.in_flight} requests got no answer"
        if not waits and at - _or(self._spoke, at) >= self.silent_seconds:
            return f"no sign of life for {at - _or(self._spoke, at):.0f} s"
        return ""

    def _take(self, sample: Sample) -> None:
        load, at = sample.load, sample.at
        moved = sample.answered > self._answered or sample.in_flight == 0
        if load is not None:
            again = load.whole and load.work < self._work  # somebody's server was started anew
            moved = moved or again or load.work > self._work
            self._work = load.work if again else max(self._work, load.work)
            self._spoke = at
        idle = load is not None and load.running + load.waiting == 0
        if self._moved is None or moved:
            self._moved = at
        if self._at_work is None or moved or not idle:
            self._at_work = at
        if self._spoke is None or sample.in_flight > 0:
            self._spoke = at  # counted only while idle: a busy engine may be slow to answer
        self._answered = max(self._answered, sample.answered)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
