"""Whether the engine's faults are so many that it must not be fed: the black hole rule.

An engine that fails every request in milliseconds would hand a whole queue back and forth. After
each fault leasing pauses, longer each time in a row; past a share of faults the engine is
condemned. Pure: outcomes and the time in, decisions out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

REMEMBERED = 64
ENOUGH = 12  # outcomes before a share means anything
CONDEMN_SHARE = 0.5
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class EngineTrust:
    """The last outcomes of the engine that is up now."""

    _outcomes: deque[bool] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _in_row: int = 0
    _resume_at: float = 0.0

    def good(self) -> None:
        """Count a request that the engine answered, whatever the answer is worth."""
        self._outcomes.append(True)
        self._in_row = 0

    def fault(self, now: float, *, blamed: bool = True) -> None:
        """Count a fault; one that is not blamed (busy, dead) only makes leasing pause."""
        if blamed:
            self._outcomes.append(False)
        if now >= self._resume_at:  # requests that fail together count once
            self._in_row += 1
            pause = FIRST_PAUSE_SECONDS * 2 ** min(self._in_row - 1, 16)
            self._resume_at = now + min(LONGEST_PAUSE_SECONDS, pause)

    def pause_seconds(self, now: float) -> float:
        """Return how long to lease nothing yet."""
        return max(0.0, self._resume_at - now)

    @property
    def condemned(self) -> bool:
        """Whether the share of faults is past the limit."""
        faults = self._outcomes.count(False)
        return faults >= ENOUGH and faults >= CONDEMN_SHARE * len(self._outcomes)

    def fresh(self) -> None:
        """Begin anew: another engine is up. The pause in force stays."""
        self._outcomes.clear()
