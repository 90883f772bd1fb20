"""How long completions are: exact counts by length, and bins that suit them. Pure.

Memory is one entry a length that occurs, so it is bounded by the longest completion.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from producer.report.data import Bin, Distribution

if TYPE_CHECKING:
    from collections.abc import Sequence

BARS = 40
LOG_BARS_A_DECADE = 12
# A limit so many times above the longest completion is no longer drawn: it would squash the rest.
LINEAR_REACH = 2
LOG_REACH = 10
# Lengths are binned by ratio where the longest is so many times the median, or the 95th percentile
# so many times the 5th: equal steps would put nearly all of them into a few bars.
_LONG_TAIL = 8
_WIDE_SPREAD = 40


class Lengths:
    """Counts lengths, whole and cut apart."""

    def __init__(self) -> None:
        self._all: Counter[int] = Counter()
        self._cut: Counter[int] = Counter()

    def add(self, tokens: int, *, cut: bool = False) -> None:
        """Count one completion."""
        self._all[tokens] += 1
        if cut:
            self._cut[tokens] += 1

    def __add__(self, other: Lengths) -> Lengths:
        """Return both together."""
        both = Lengths()
        both._all = self._all + other._all
        both._cut = self._cut + other._cut
        return both

    def distribution(
        self, limit: int | None = None, like: Distribution | None = None
    ) -> Distribution | None:
        """Return what was counted, or None where nothing was.

        A bin ends at ``limit``, unless that is far away. The bins are those of ``like``, if given:
        it must cover all that was counted here.
        """
        if not self._all:
            return None
        ordered = sorted(self._all)
        p5, p50, p90, p95, p99 = self._percentiles(ordered, (0.05, 0.5, 0.9, 0.95, 0.99))
        count = self._all.total()
        tokens = sum(length * times for length, times in self._all.items())
        if like is not None:
            scale = like.scale
            edges = [like.bins[0].above, *(one.up_to for one in like.bins)]
        else:
            uneven = ordered[-1] > _LONG_TAIL * max(1, p50) or p95 > _WIDE_SPREAD * max(1, p5)
            scale = "log" if uneven else "linear"
            edges = _EDGES[scale](ordered[0], ordered[-1], limit)
        return Distribution(
            completions=count,
            tokens=tokens,
            mean=tokens / count,
            p50=p50,
            p90=p90,
            p99=p99,
            longest=ordered[-1],
            scale=scale,
            bins=self._bins(ordered, edges),
        )

    def _percentiles(self, ordered: Sequence[int], shares: Sequence[float]) -> list[int]:
        """Return the smallest length that at least each share of all is no longer than."""
        found: list[int] = []
        wanted = [max(1, -int(-share * self._all.total() // 1)) for share in shares]
        seen = 0
        for length in ordered:
            seen += self._all[length]
            while len(found) < len(wanted) and seen >= wanted[len(found)]:
                found.append(length)
        return found

    def _bins(self, ordered: Sequence[int], edges: Sequence[int]) -> list[Bin]:
        totals, cuts = [0] * (len(edges) - 1), [0] * (len(edges) - 1)
        at = 0
        for length in ordered:
            while length > edges[at + 1]:
                at += 1
            totals[at] += self._all[length]
            cuts[at] += self._cut[length]
        return [
            Bin(above, up_to, total, cut)
            for (above, up_to), total, cut in zip(pairwise(edges), totals, cuts, strict=True)
        ]


def linear_edges(shortest: int, longest: int, limit: int | None) -> list[int]:
    """Return edges of equal steps that cover both lengths.

    A ``limit`` that is not far above them is one of the edges, so that what it cut is one bar.
    """
    top, bottom = max(longest, 1), max(0, shortest - 1)
    if bottom < top / 2:
        bottom = 0
    anchor = limit if limit is not None and limit <= LINEAR_REACH * top else None
    end = max(top, anchor or 0)
    width = max(1, -(-(end - bottom) // BARS))
    if anchor is None:
        width = _round_up(width)
    low = anchor or 0
    low -= -(-(low - bottom) // width) * width
    if anchor is None:
        low = bottom // width * width
    return [max(0, low), *range(low + width, end + width, width)]


def log_edges(shortest: int, longest: int, limit: int | None) -> list[int]:
    """Return whole edges of equal ratios that cover both lengths; see `linear_edges`."""
    top, bottom = max(longest, 1), max(0, shortest - 1)
    anchor = limit if limit is not None and limit <= LOG_REACH * top else top
    edges, step = {bottom}, 0
    while (edge := round(anchor / 10 ** (step / LOG_BARS_A_DECADE))) > bottom:
        edges.add(edge)
        step += 1
    step = 0
    while max(edges) < top:
        step += 1
        edges.add(round(anchor * 10 ** (step / LOG_BARS_A_DECADE)))
    return sorted(edges)


def _round_up(width: int) -> int:
    """Return the next of 1, 2, 5, 10, 20, 50 ... that is no less than ``width``."""
    unit = 1
    while True:
        for step in (1, 2, 5):
            if step * unit >= width:
                return step * unit
        unit *= 10


_EDGES = {"linear": linear_edges, "log": log_edges}
