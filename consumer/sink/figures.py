"""What one sink has done so far, counted as it happens. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.telemetry.catalogue import COMMIT_BUCKETS_SECONDS
from common.telemetry.readings import Histogram

if TYPE_CHECKING:
    from common.ids import RunName
    from common.parts.index import PartIndex

SERVICES = ("redis", "storage")


def _buckets() -> Histogram:
    return Histogram(COMMIT_BUCKETS_SECONDS)


@dataclass(slots=True)
class RunFigures:
    """One run's."""

    parts: int = 0
    committed: int = 0
    bytes: int = 0
    repeated: int = 0  # results of items that were stored before
    rejected: int = 0
    committed_at: float | None = None  # unix time
    seconds: Histogram = field(default_factory=_buckets)  # of commits


@dataclass(slots=True)
class Figures:
    """All runs', and how the services that the sink needs answer."""

    runs: dict[RunName, RunFigures] = field(default_factory=dict)
    failed_calls: Counter[str] = field(default_factory=Counter)  # by service
    away: Counter[str] = field(default_factory=Counter)  # callers that wait for a service now

    def of(self, run: RunName) -> RunFigures:
        """Return the figures of a run, to be added to."""
        return self.runs.setdefault(run, RunFigures())

    def committed(
        self, run: RunName, part: PartIndex | None, *, entries: int, now: float, seconds: float
    ) -> None:
        """Count one commit of ``entries`` results; no part: all of them were stored before."""
        figures = self.of(run)
        rows = part.rows if part else 0
        figures.repeated += max(0, entries - rows)
        figures.committed_at = now
        if part:
            figures.parts += 1
            figures.committed += rows
            figures.bytes += part.bytes
            figures.seconds.observe(seconds)
