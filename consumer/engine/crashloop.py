"""When an engine fails so often that it must become smaller, or be given up. Pure.

Two counts, because an engine that dies is not always to blame: a row that kills engines does so
again and again, first among others and then alone, until its deaths are used up. A life that
answered something, or that ended under a suspect running alone, is therefore counted apart, with
a higher limit; a life that was of no use to anybody counts as a failed start.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CrashLoop:
    """Counts short lives in a row; one long life wipes both counts out."""

    attempts: int  # useless lives in a row
    lives: int  # short lives in a row that were of use, or that a suspect ended
    useless: int = 0
    short: int = 0

    def ended(self, *, long: bool, useful: bool, suspect: bool) -> None:
        """Count one life: how long it was, whether it answered an item, and what ended it."""
        if long:
            self.useless = self.short = 0
        elif useful or suspect:
            self.short += 1
            self.useless = 0 if useful else self.useless
        else:
            self.useless += 1

    @property
    def over(self) -> bool:
        """Whether it should not be started again."""
        return self.useless >= self.attempts or self.short >= self.lives

    @property
    def in_a_row(self) -> int:
        """The failures in a row, for the words about them and for the length of the pause."""
        return max(self.useless, self.short)


@dataclass(slots=True)
class MemoryDeaths:
    """Deaths for want of GPU memory: one may be chance, two within the window are not.

    A long life between them is no excuse: memory runs out at the peak of the work, which may take
    minutes to come. After each two the count begins anew, since the next engine is another one.
    """

    window_seconds: float
    _last: float | None = None

    def died(self, now: float) -> bool:
        """Count a death at ``now``; return whether the next engine should take less."""
        again = self._last is not None and now - self._last <= self.window_seconds
        self._last = None if again else now
        return again
