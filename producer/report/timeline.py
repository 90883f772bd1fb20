"""Tokens over time, a worker at a time, from completions in any order. Pure; bounded memory.

A completion's tokens are spread evenly over its duration. Bins are at first one second wide; they
are joined in pairs whenever the time that they span needs more than `MAX_BINS` of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

MAX_BINS = 720
MAX_WORKERS = 128  # what comes later is counted as one
MAX_SPELLS = 512  # busy times of one worker that are kept apart
OTHERS = "others"


class Busy:
    """When a worker had at least one request under way: the union of intervals."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def add(self, start: float, end: float) -> None:
        """Add one interval."""
        first = bisect_left(self._ends, start)
        last = first
        while last < len(self._starts) and self._starts[last] <= end:
            start = min(start, self._starts[last])
            end = max(end, self._ends[last])
            last += 1
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        if len(self._starts) > MAX_SPELLS:
            self._join_nearest()

    def _join_nearest(self) -> None:
        """Join the two spells with the least time between them: what is lost is that little."""
        gaps = [after - end for after, end in zip(self._starts[1:], self._ends, strict=False)]
        at = gaps.index(min(gaps))
        del self._starts[at + 1], self._ends[at]

    @property
    def seconds(self) -> float:
        """How long it was busy."""
        return sum(end - start for start, end in zip(self._starts, self._ends, strict=True))

    @property
    def span(self) -> tuple[float, float]:
        """From when to when."""
        return self._starts[0], self._ends[-1]


@dataclass(slots=True)
class Worker:
    """What is known of one worker."""

    completions: int = 0
    tokens: int = 0
    request_seconds: float = 0.0
    busy: Busy = field(default_factory=Busy)
    # Tokens that fall on a part of a bin; and where a rate (tokens a whole bin) begins or ends.
    parts: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    steps: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def values(self) -> dict[int, float]:
        """Return the tokens in each bin that has any."""
        found: dict[int, float] = defaultdict(float, self.parts)
        rate, before = 0.0, 0
        for at in sorted(self.steps):
            if rate > 1e-9:
                for bin_ in range(before, at):
                    found[bin_] += rate
            rate += self.steps[at]
            before = at
        return found

    def join_pairs(self) -> None:
        """Make bins of twice the width."""
        joined: dict[int, float] = defaultdict(float)
        for at, tokens in self.values().items():
            joined[at // 2] += tokens
        self.parts, self.steps = joined, defaultdict(float)


class Timeline:
    """The tokens of all workers, in bins of one common width."""

    def __init__(self) -> None:
        self.width = 1.0
        self.workers: dict[str, Worker] = {}
        self.joined: set[str] = set()  # workers that are counted as one, as far as remembered
        self._first: int | None = None
        self._last = 0

    def add(self, name: str, start: float, seconds: float, tokens: int) -> None:
        """Add one completion: unix time, duration, and what it generated."""
        worker = self._worker(name)
        seconds = max(0.0, seconds)
        worker.completions += 1
        worker.tokens += tokens
        worker.request_seconds += seconds
        worker.busy.add(start, start + seconds)
        self._make_room(start, start + seconds)
        self._spread(worker, start, seconds, tokens)

    def _worker(self, name: str) -> Worker:
        if name not in self.workers and len(self.workers) >= MAX_WORKERS:
            if len(self.joined) < 100_000:
                self.joined.add(name)
            name = OTHERS
        return self.workers.setdefault(name, Worker())

    def _make_room(self, start: float, end: float) -> None:
        first, last = int(start // self.width), int(end // self.width)
        if self._first is not None:
            first, last = min(first, self._first), max(last, self._last)
        while last - first >= MAX_BINS:
            for worker in self.workers.values():
                worker.join_pairs()
            self.width *= 2
            first, last = first // 2, last // 2
        self._first, self._last = first, last

    def _spread(self, worker: Worker, start: float, seconds: float, tokens: int) -> None:
        width = self.width
        first, last = int(start // width), int((start + seconds) // width)
        if first == last or seconds <= 0:
            worker.parts[first] += tokens
            return
        rate = tokens / seconds
        worker.parts[first] += rate * ((first + 1) * width - start)
        worker.parts[last] += rate * (start + seconds - last * width)
        if last - first > 1:
            worker.steps[first + 1] += rate * width
            worker.steps[last] -= rate * width

    @property
    def start(self) -> float | None:
        """When the first bin begins, as unix time; None where there is none."""
        return None if self._first is None else self._first * self.width

    def series(self, most: int) -> tuple[float, dict[str, list[float]]]:
        """Return (bin width in seconds, tokens per second in each bin of each worker).

        At most ``most`` bins; all workers have the same ones, from `start` on.
        """
        if self._first is None:
            return self.width, {}
        bins = self._last - self._first + 1
        group = -(-bins // most)
        count = -(-bins // group)
        found = {}
        for name, worker in self.workers.items():
            tokens = [0.0] * count
            for at, value in worker.values().items():
                tokens[(at - self._first) // group] += value
            found[name] = [value / (group * self.width) for value in tokens]
        return group * self.width, found
