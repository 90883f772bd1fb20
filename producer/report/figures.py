"""The pictures of a report, drawn by matplotlib: the only file that knows it.

Each is drawn twice, for a screen or paper and for a phone, since text must not shrink with it.
"""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from producer.report import numbers
from producer.report.svg import ACCENT, BAR, INK, LINE, MUTED, PAPER, embed
from producer.report.ticks import length_ticks, place_of, time_ticks

if TYPE_CHECKING:
    from producer.report.data import Distribution, Limit, Report

WIDE, NARROW = 880, 380  # px
STRIPS = 12  # workers that have a strip of their own
_TEXT = 13  # px
_LINE = 17  # px
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "genq",
    "font.family": "DejaVu Sans",
    "font.size": _TEXT,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.labelcolor": MUTED,
    "axes.axisbelow": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 1,
    "hatch.color": PAPER,
    "hatch.linewidth": 1.4,
    "xtick.color": MUTED,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.color": MUTED,
    "ytick.major.size": 0,
}
_HATCH = "////"


@dataclass(slots=True)
class Picture:
    """A picture in both sizes, as elements of the page."""

    wide: str
    narrow: str


@dataclass(slots=True)
class _Sheet:
    """One figure while it is drawn; sizes in px."""

    width: int
    height: int
    figure: Any = field(init=False)
    hints: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(self.width / 72, self.height / 72), dpi=72)

    def axes(self, left: int, top: int, right: int, bottom: int) -> Any:
        """Return axes with these margins."""
        box = (
            left / self.width,
            bottom / self.height,
            (self.width - left - right) / self.width,
            (self.height - top - bottom) / self.height,
        )
        return self.figure.add_axes(box)

    def hint(self, drawn: Any, words: str) -> None:
        """Show words where the pointer rests on something."""
        name = f"mark{len(self.hints)}"
        drawn.set_gid(name)
        self.hints[name] = words

    def embedded(self, name: str, title: str, text: str) -> str:
        """Return the picture as an element of the page."""
        out = io.StringIO()
        self.figure.savefig(out, format="svg", metadata={"Date": None})
        return embed(out.getvalue(), name=name, title=title, text=text, hints=self.hints)


def draw(report: Report) -> dict[str, Picture]:
    """Return the pictures of a report by name; those without data are left out."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it builds a font cache, and says so
    found: dict[str, Picture] = {}
    with mpl.rc_context(_STYLE):
        if report.lengths:
            found["lengths"] = _both("lengths", _lengths, report)
        if report.thinking.thought and report.thinking.answer:
            found["thinking"] = _both("thinking", _thinking, report)
        if report.throughput.bins:
            found["throughput"] = _both("throughput", _throughput, report)
    return found


def _both(name: str, paint: Any, report: Report) -> Picture:
    return Picture(
        *(paint(report, size).embedded(f"{name}-{size}", *_WORDS[name]) for size in (WIDE, NARROW))
    )


_WORDS = {
    "lengths": (
        "How long completions are",
        "A histogram of lengths in tokens; what was cut off is hatched. The table has its numbers.",
    ),
    "thinking": (
        "Thoughts and answers",
        "Two histograms on one scale: thoughts above, answers below. The table has their numbers.",
    ),
    "throughput": (
        "Tokens per second over time",
        "The rate of all workers together, then of each. The table of workers has their means.",
    ),
}


def _lengths(report: Report, width: int) -> _Sheet:
    assert report.lengths is not None
    others = _other_limits(report.lengths, report.limit)
    top = 34 + _LINE * len(others)
    sheet = _Sheet(width, (300 if width == WIDE else 260) + _LINE * len(others))
    axes = sheet.axes(44, top, 12, 34)
    _bars(sheet, axes, report.lengths, few=width == NARROW)
    for at, tokens in enumerate(others, start=1):
        _limit(axes, report.lengths, tokens, at)
    if report.limit.run_max_tokens is not None:
        _limit(axes, report.lengths, report.limit.run_max_tokens, 0)
        _label_cut(axes, report.lengths, report.limit, report.limit.run_max_tokens)
    return sheet


def _bars(sheet: _Sheet, axes: Any, lengths: Distribution, *, few: bool, cut: bool = True) -> None:
    """Draw a histogram: whole completions below, cut ones above them, hatched."""
    top = max(one.completions for one in lengths.bins)
    for at, one in enumerate(lengths.bins):
        if not one.completions:
            continue
        left, right = (at, at + 1) if lengths.scale == "log" else (one.above, one.up_to)
        gap = (right - left) * 0.06
        box = {"x": left + gap, "width": right - left - 2 * gap, "align": "edge", "linewidth": 0}
        words = f"{one.above + 1:,} to {one.up_to:,} tokens: {one.completions:,}"
        whole = one.completions - one.cut
        if whole:
            sheet.hint(axes.bar(height=whole, color=BAR, **box)[0], words)
        if one.cut and cut:
            (bar,) = axes.bar(height=one.cut, bottom=whole, color=ACCENT, hatch=_HATCH, **box)
            bar.set_edgecolor(PAPER)
            sheet.hint(bar, f"{words}, {one.cut:,} of them cut off")
    first, last = lengths.bins[0], lengths.bins[-1]
    span = (0, len(lengths.bins)) if lengths.scale == "log" else (first.above, last.up_to)
    axes.set_xlim(span[0], span[1] + (span[1] - span[0]) * 0.01)
    axes.set_ylim(0, top * 1.08)
    ticks = length_ticks(lengths, 4 if few else 8)
    axes.set_xticks([place_of(tick, lengths) for tick in ticks], [numbers.short(t) for t in ticks])
    _count_axis(axes, top)


def _count_axis(axes: Any, top: int) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _at: numbers.short(value) if value else "")
    axes.grid(visible=True, axis="y")
    axes.set_ylim(0, max(1.0, top * 1.08))


def _other_limits(lengths: Distribution, limit: Limit) -> list[int]:
    """Return limits beside the run's that many completions were made under: rows have their own."""
    return [
        one.max_tokens
        for one in limit.limits
        if one.max_tokens != limit.run_max_tokens
        and one.completions >= lengths.completions * 0.05
        and one.max_tokens <= lengths.bins[-1].up_to
    ][:2]


def _limit(axes: Any, lengths: Distribution, tokens: int, at: int) -> None:
    """Draw a limit, the run's (0) or another, with its words in a line of their own."""
    top, (left, right) = axes.get_ylim()[1], axes.get_xlim()
    where = place_of(tokens, lengths)
    inside = tokens <= lengths.bins[-1].up_to
    style: Any = {"color": MUTED if at else ACCENT, "clip_on": False, "dashes": (4, 3)}
    pixels = axes.get_position().height * axes.figure.get_figheight() * 72
    reach = top * (1 + _LINE * at / pixels)  # up to its words
    if inside:
        axes.plot([where, where], [0, reach], linewidth=1 if at else 1.5, **style)
    axes.annotate(
        f"limit {tokens:,}" if inside else f"limit {tokens:,}, far to the right →",
        (where if inside else right, top),
        xytext=(0, 8 + _LINE * at),
        textcoords="offset points",
        ha="right" if not inside or where > left + (right - left) * 0.25 else "left",
        color=MUTED if at else ACCENT,
        fontweight="normal" if at else "bold",
        annotation_clip=False,
    )


def _label_cut(axes: Any, lengths: Distribution, limit: Limit, told: int) -> None:
    """Say beside the bar of the run's limit how many were cut off there."""
    bar = next((one for one in lengths.bins if one.above < told <= one.up_to and one.cut), None)
    if bar is None:
        return
    axes.annotate(
        f"{numbers.percent(limit.share * bar.cut / limit.cut)} cut off here",
        (place_of(bar.above, lengths), bar.completions - bar.cut / 2),
        xytext=(-6, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        color=ACCENT,
        fontweight="bold",
        bbox={"facecolor": PAPER, "linewidth": 0, "pad": 2},
    )


def _thinking(report: Report, width: int) -> _Sheet:
    thinking = report.thinking
    sheet = _Sheet(width, 310)
    panels = ((thinking.thought, "thoughts", 26, 188), (thinking.answer, "answers", 158, 34))
    for lengths, what, top, bottom in panels:
        assert lengths is not None
        axes = sheet.axes(44, top, 12, bottom + (22 if bottom > 100 else 0))
        _bars(sheet, axes, lengths, few=width == NARROW, cut=False)
        if bottom > 100:
            axes.tick_params(labelbottom=False)
        words = f"{what}: median {lengths.p50:,}, longest {lengths.longest:,} tokens"
        axes.set_title(words, loc="left", fontsize=_TEXT, color=INK, pad=6)
    return sheet


def _throughput(report: Report, width: int) -> _Sheet:
    speeds = report.throughput
    shown = speeds.workers[:STRIPS] if len(speeds.workers) > 1 else []
    head, strip = 110, 54
    sheet = _Sheet(width, 24 + head + strip * len(shown) + 30)
    begin = datetime.fromisoformat(speeds.start or "1970-01-01T00:00:00+00:00").timestamp()
    edges = [begin + at * speeds.bin_seconds for at in range(speeds.bins + 1)]
    total = sum(worker.tokens for worker in speeds.workers)
    busy = sum(worker.busy_seconds for worker in speeds.workers)
    mean = total / busy if busy else 0.0
    strips = [("all workers", speeds.total, f"{numbers.count(mean)} tokens/s each", BAR)]
    strips += [
        (_cut_name(worker.worker, 44 if width == WIDE else 22), worker.series, _speed(worker), BAR)
        for worker in shown
    ]
    most = max((max(worker.series, default=0.0) for worker in shown), default=0.0)
    at = 24
    for number, (name, series, words, colour) in enumerate(strips):
        height = head - 26 if number == 0 else strip - 26
        axes = sheet.axes(44, at, 12, sheet.height - at - height)
        axes.stairs(series, edges, fill=True, color=colour, linewidth=0)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, (max(series, default=0.0) if number == 0 else most) * 1.05 or 1.0)
        bold = "bold" if number == 0 else "normal"
        axes.set_title(name, loc="left", fontsize=_TEXT, color=INK, pad=4, fontweight=bold)
        axes.set_title(words, loc="right", fontsize=_TEXT, color=MUTED, pad=4)
        _rate_axis(axes, number)
        _time_axis(axes, width, shown=number == len(strips) - 1)
        at += head if number == 0 else strip
    return sheet


def _speed(worker: Any) -> str:
    return f"{numbers.count(worker.tokens_per_second)} tokens/s" + (
        " · slow" if worker.slow else ""
    )


def _rate_axis(axes: Any, number: int) -> None:
    ticks = MaxNLocator(2).tick_values(0, axes.get_ylim()[1])
    fitting = [tick for tick in ticks if 0 < tick <= axes.get_ylim()[1]]
    axes.set_yticks([0, *(fitting if number == 0 else fitting[-1:])])
    axes.yaxis.set_major_formatter(lambda value, _at: numbers.short(value) if value else "")
    axes.grid(visible=True, axis="y")


def _time_axis(axes: Any, width: int, *, shown: bool) -> None:
    start, end = axes.get_xlim()
    ticks = time_ticks(start, end, 6 if width == WIDE else 3)
    axes.set_xticks([at for at, _ in ticks], [words for _, words in ticks])
    if not shown:
        axes.tick_params(labelbottom=False)


def _cut_name(name: str, most: int) -> str:
    plain = "".join(c if c.isprintable() and c.isascii() else "?" for c in name)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
