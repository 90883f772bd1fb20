"""Where the marks of an axis go, and what they say. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from producer.report.data import Distribution

_STEPS_SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
_DAY_SECONDS = 86_400


def place_of(tokens: float, lengths: Distribution) -> float:
    """Return where a length lies on the axis of a histogram: in tokens, or by bars if ``log``."""
    if lengths.scale != "log":
        return tokens
    for at, one in enumerate(lengths.bins):
        if tokens <= one.up_to:
            return at + max(0.0, tokens - one.above) / (one.up_to - one.above)
    return float(len(lengths.bins))


def length_ticks(lengths: Distribution, most: int) -> list[int]:
    """Return round lengths to mark on the axis of a histogram, at most about ``most``."""
    first, last = lengths.bins[0].above, lengths.bins[-1].up_to
    if lengths.scale == "log":
        return _log_ticks(max(1, first), last, most)
    step = _round_step((last - first) / most)
    return list(range(-(-first // step) * step, last + 1, step))


def _log_ticks(first: int, last: int, most: int) -> list[int]:
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [
            step * 10**power
            for power in range(len(str(last)))
            for step in steps
            if first <= step * 10**power <= last
        ]
        if len(ticks) <= most:
            break
    return ticks


def _round_step(least: float) -> int:
    unit = 1
    while True:
        for step in (1, 2, 5):
            if step * unit >= least:
                return step * unit
        unit *= 10


def time_ticks(start: float, end: float, most: int) -> list[tuple[float, str]]:
    """Return (unix time, words) to mark between two times, at most ``most``; UTC.

    A day's first mark names the day.
    """
    span = end - start
    step = next((s for s in _STEPS_SECONDS if span / s <= most), 0)
    if not step:
        step = -(-int(span / most) // _DAY_SECONDS) * _DAY_SECONDS
    marks = []
    at = -(-int(start) // step) * step
    before = ""
    while at <= end:
        moment = datetime.fromtimestamp(at, UTC)
        day = f"{moment:%b} {moment.day}"
        if step >= _DAY_SECONDS:
            words = day
        else:
            clock = f"{moment:%H:%M:%S}" if step < 60 else f"{moment:%H:%M}"
            words = f"{clock}\n{day}" if day != before else clock
        marks.append((float(at), words))
        before = day
        at += step
    return marks
