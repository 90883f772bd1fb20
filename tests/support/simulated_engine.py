"""A simulated engine under a window: requests that arrive late, last, wait and are put back.

Pure, on a clock of its own. Time goes in ticks; places, a step that grows with what runs, the
token pool and its retractions are as in the stand-in (:mod:`tests.support.fake_pool`). In flight
follows the window: up as work is fetched, down as answers end.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumer.engine.api import EngineLoad
from tests.support.fake_pool import TokenPool, held, need

if TYPE_CHECKING:
    from consumer.generation.window import Window

TICK_SECONDS = 0.25
FETCHED = 64  # most that arrive within a tick
PROMPT = 100
LIMIT = 512  # tokens that every answer may have at most
PREFILL_RATE = 40_000.0  # tokens a second


@dataclass(slots=True, eq=False)
class Asked:
    length: int
    came: float
    prompt: int = PROMPT
    most: int = LIMIT
    progress: float = 0.0

    @property
    def written(self) -> int:
        return int(self.progress)


@dataclass
class Simulation:
    """So many places, room for so many requests half-way, and one client with one window.

    ``deadline``: seconds after which a request fails. ``queue_limit``: where more than so many
    wait, the engine refuses; 0: never.
    """

    places: int
    capacity: int
    answers: tuple[int, int] = (64, 384)  # the shortest and the longest, in tokens
    deadline: float = 60.0
    queue_limit: int = 0
    base_seconds: float = 0.011
    each_seconds: float = 0.00006
    now: float = 0.0
    tokens: float = 0.0
    failed: int = 0
    refused: int = 0
    running: list[Asked] = field(default_factory=list)
    waiting: deque[Asked] = field(default_factory=deque)
    pool: TokenPool = field(default_factory=TokenPool)
    _random: random.Random = field(default_factory=lambda: random.Random(7))
    _coming: int = 0  # fetched, and not there yet
    _pause_until: float = 0.0  # the client leases nothing after a refusal

    @property
    def pool_tokens(self) -> int:
        return self.capacity * (PROMPT + sum(self.answers) // 4)

    @property
    def longest_seconds(self) -> float:
        """What the longest answer takes while all that fits runs."""
        running = min(self.places, self.capacity)
        return self.answers[1] * (self.base_seconds + self.each_seconds * running)

    @property
    def in_flight(self) -> int:
        return self._coming + len(self.running) + len(self.waiting)

    def load(self) -> EngineLoad:
        usage = min(1.0, sum(map(held, self.running)) / self.pool_tokens)
        counts = (len(self.running), len(self.waiting))
        return EngineLoad(*counts, usage, int(self.tokens), self.pool.retracted)

    def second(self, window: Window) -> None:
        """Run for a second under a window that may only be told of refusals."""
        for _ in range(round(1 / TICK_SECONDS)):
            self._arrive(window)
            if self.now >= self._pause_until:
                self._coming = max(0, min(FETCHED, window.size - self.in_flight))
            self._tick()
            self.now += TICK_SECONDS

    def run(self, window: Window, seconds: int) -> float:
        """Steer for so long; return the tokens a second."""
        before = self.tokens
        for _ in range(seconds):
            window.observe(self.load(), in_flight=self.in_flight)
            self.second(window)
        return (self.tokens - before) / seconds

    def _arrive(self, window: Window) -> None:
        for _ in range(self._coming):
            if self.queue_limit and len(self.waiting) >= self.queue_limit:
                self.refused += 1
                window.pushed_back()
                self._pause_until = self.now + 1.0
            else:
                self.waiting.append(Asked(self._random.randint(*self.answers), self.now))
        self._coming = 0

    def _tick(self) -> None:
        self.pool.size = self.pool_tokens
        seconds = TICK_SECONDS - self._admit()
        step = self.base_seconds + self.each_seconds * len(self.running)
        steps = seconds / step
        for one in self.pool.retract(self.running, steps=round(steps)):
            self.running.remove(one)
            self.waiting.append(one)
        for one in self.running:
            done = min(steps, one.length - one.progress)
            one.progress += done
            self.tokens += done
        self.running = [one for one in self.running if one.progress < one.length]
        self._fail_late()

    def _admit(self) -> float:
        """Let in what fits; return the seconds that reading it takes, half a tick at most."""
        read, room = 0, self.pool.room(self.running)
        while self.waiting and len(self.running) < self.places:
            one = self.waiting[0]
            if read >= PREFILL_RATE * TICK_SECONDS / 2 or need(one) > room:
                break
            self.running.append(self.waiting.popleft())
            room -= self.pool.cost(one)
            read += held(one)
        return read / PREFILL_RATE

    def _fail_late(self) -> None:
        since = self.now - self.deadline
        late = sum(one.came < since for one in (*self.running, *self.waiting))
        if late:
            self.failed += late
            self.running = [one for one in self.running if one.came >= since]
            self.waiting = deque(one for one in self.waiting if one.came >= since)
