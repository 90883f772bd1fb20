"""How many requests to keep in flight. Pure: the engine's figures in, a number out.

Enough that the engine never starves, few enough that it neither retracts nor refuses.
The window begins at a share of the engine's own limit and doubles while the engine takes
everything, then creeps up to a little over that limit (a short queue inside it hides our latency),
and gives way at once when the engine retracts, refuses, or lets requests wait. It never grows past
what the token pool could hold if each further request were as long as those that run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumer.engine.api import EngineLoad

START = 8
START_SHARE = 1 / 16  # of its limit, where that is more: the token pool is then far from full
OVERSHOOT = 0.25  # of the engine's running limit: a queue inside it, so that it never starves
WAITING_SHARE = 0.35  # more than this share of what runs waiting is only latency
FULL_USAGE = 0.92  # of the token pool: grow no further
LEAST_USAGE = 1e-6  # of the token pool: less is as good as none
TIGHT_USAGE = 0.98  # give way
SATURATED = 0.9  # of the window in use, or there is no reason to grow
LEAST_CUT, MOST_CUT = 0.03, 0.15  # of the window, at a retraction
FADING = 0.97  # a sample, of the most that ran
STUCK_SAMPLES = 3
CALM_SAMPLES = 5  # samples without growth after the window gave way


@dataclass(slots=True)
class Window:
    """The number of requests to have in flight, steered by :meth:`observe`.

    ``1 <= size <= ceiling`` always holds. ``most``: the ceiling that somebody measured to be best
    for this engine; None: the limit and a short queue before it.
    """

    max_running: int
    most: int | None = field(default=None, kw_only=True)
    size: int = 0
    _first: int = 0  # the size it begins with
    _lately: float = 0.0  # the most that ran in the last samples
    _ramping: bool = True
    _calm: int = 0
    _retractions: int | None = None
    _running: int = 0
    _stuck: int = 0  # samples in a row with a long queue in the engine that does not move
    _cutting: bool = False  # it gave way, and more than its size are still in flight

    def __post_init__(self) -> None:
        self.max_running = max(1, self.max_running)
        self._first = max(START, int(self.max_running * START_SHARE))
        self.size = min(self.ceiling, self._first)

    @property
    def ceiling(self) -> int:
        """The largest size: what was measured; else the engine's limit, and a short queue."""
        if self.most is not None:
            return max(1, self.most)
        return self.max_running + max(1, math.ceil(self.max_running * OVERSHOOT))

    def observe(self, load: EngineLoad, *, in_flight: int) -> int:
        """Take one sample of the engine's figures; return the new size."""
        before = load.retractions if self._retractions is None else self._retractions
        self._retractions = load.retractions
        self._lately = max(float(load.running), self._lately * FADING)
        patience = self._patience()
        queued = load.waiting > patience
        # New requests wait for their prefill, too: a queue that feeds more running ones is well.
        self._stuck = self._stuck + 1 if queued and load.running <= self._running else 0
        self._running = load.running
        # Long answers leave slowly: what the last cut will bring is not to be cut once more.
        self._cutting = self._cutting and in_flight > self.size
        if self._cutting:
            self._stuck = 0
        elif self._calm == 0 and load.retractions > before:
            self._give_way(self._without(load.retractions - before, min(self.size, in_flight)))
        elif self._calm == 0 and load.token_usage >= TIGHT_USAGE and load.waiting:
            self._give_way(self.size * 0.95)
        elif self._stuck >= STUCK_SAMPLES:
            self._give_way(self.size - (load.waiting - patience))
        elif self._calm > 0:
            self._calm -= 1
        elif not queued and load.token_usage < FULL_USAGE and in_flight >= self.size * SATURATED:
            self._grow(load)
        return self.size

    def pushed_back(self) -> int:
        """Take a 429 or 503: the engine refuses more; return the new size.

        One refusal seldom comes alone: those that follow count once, until what was let in
        before has left and some samples were calm.
        """
        if self._calm == 0 and not self._cutting:
            self._give_way(self.size * 0.7)
        return self.size

    def _patience(self) -> int:
        """How many may wait: of what runs, since the pool may hold far less than the limit."""
        measured = 0 if self.most is None else self.most - self.max_running
        return max(2, math.ceil(max(self._lately, self._first) * WAITING_SHARE), measured)

    @staticmethod
    def _without(retracted: int, size: int) -> float:
        """Return a size with room for those that were put back: too deep a cut starves the engine.

        Those that follow within some samples were let in before it, and count once with them.
        """
        least, most = LEAST_CUT * size, MOST_CUT * size
        return size - min(max(retracted, least), most)

    def _grow(self, load: EngineLoad) -> None:
        step = self.size if self._ramping else max(1, self.size // 20)
        if load.token_usage > 0:
            holds = load.running * FULL_USAGE / max(load.token_usage, LEAST_USAGE)
            step = min(step, max(1, int(holds) - self.size))
        self.size = min(self.ceiling, self.size + step)
        if self.size == self.ceiling:
            self._ramping = False

    def _give_way(self, size: float) -> None:
        self._stuck = 0
        self.size = max(1, min(self.size, math.floor(size)))
        self._ramping = False
        self._cutting = True
        self._calm = CALM_SAMPLES
