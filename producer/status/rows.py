"""The rows of a status screen: one for each worker, in columns, slow ones marked in words. Pure.

A row is one line. Where the screen is narrow, columns are left out, the least useful first; what is
wrong with a card is never left out, even if its row then needs a second line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from common.duration import duration
from producer.status.serving import engine_of, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.queue.workers import WorkerInfo

SLOW_SHARE = 0.8  # of the median worker's rate, as are the shares that are shown
MARKS = 42  # columns that are kept free for marks, rather than for what is worth little,
FEW_MARKS = 28  # and rather than for the rest; longer ones go on in a second line
FEWEST = 3  # rows that are shown, however low the screen is
# Columns in the order of the row, each with what it is worth: the least is left out first.
_WORTH = {
    "place": 9,
    "engine": 9,
    "in_flight": 7,
    "rate": 9,
    "kv": 6,
    "busy": 4,
    "watts": 2,
    "heat": 5,
    "drafts": 1,
    "finished": 3,
}
_DEAR, _ALWAYS = 6, 9
_LEFT = ("place", "engine")


@dataclass(frozen=True, slots=True)
class _Row:
    """One worker's cells, its marks, and a remark that is left out where there is no room."""

    cells: dict[str, str]
    marks: str = ""
    remark: str = ""
    rate: float | None = None  # tokens/s; None: it is silent, or no consumer of ours

    @property
    def tail(self) -> list[str]:
        """What is behind the cells."""
        return [part for part in (self.marks, self.remark) if part]


def worker_lines(
    workers: list[WorkerInfo], *, width: int = 100, most: int | None = None, at: float | None = None
) -> list[str]:
    """Return a line for each worker, by place; of more than ``most`` the marked ones first.

    ``at``: what time it is (unix s), to say how long nothing was heard of one.
    """
    rates = sorted(number(one, "tokens_per_second") for one in workers if _counts(one))
    median = rates[len(rates) // 2] if len(rates) > 1 else 0.0
    slowest = rates[0] if rates else 0.0
    rows = [_row(one, median, slowest, at) for one in sorted(workers, key=_order)]
    left_out: list[_Row] = []
    if most is not None and len(rows) > max(most, FEWEST):
        kept = max(most, FEWEST) - 1
        chosen = sorted(range(len(rows)), key=lambda at: (not rows[at].marks, at))[:kept]
        left_out = [row for at, row in enumerate(rows) if at not in set(chosen)]
        rows = [rows[at] for at in sorted(chosen)]
    lines = _lay_out(rows, width)
    return [*lines, _others(left_out)] if left_out else lines


def place_of(worker: WorkerInfo) -> str:
    """Return where a worker is: its GPU, or the name that RQ has for it."""
    host, gpu = worker.gauges.get("host", worker.hostname), worker.gauges.get("gpu", "")
    return f"{host.partition('.')[0]} gpu {gpu}" if gpu else worker.name


def _order(worker: WorkerInfo) -> list[tuple[int, int | str]]:
    """Return a key by which gpu 10 comes behind gpu 9."""
    parts = re.split(r"(\d+)", place_of(worker))
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts if part]


def _counts(worker: WorkerInfo) -> bool:
    """Tell whether a worker's rate may be held against the others': it has work, and may do it."""
    ready = engine_of(worker) == "ready"
    return bool(worker.gauges) and ready and number(worker, "in_flight") > 0


def _row(worker: WorkerInfo, median: float, slowest: float, at: float | None) -> _Row:
    gauges = worker.gauges
    cells = {"place": place_of(worker)}
    if worker.silent:
        cells |= {"engine": "silent", "finished": f"finished {worker.finished:,}"}
        return _Row(cells, f"<- no word {_since(worker.last_heartbeat, at)}")
    if not gauges:
        return _Row({**cells, "engine": worker.state, "finished": f"finished {worker.finished:,}"})
    rate = number(worker, "tokens_per_second")
    cells |= {
        "engine": gauges.get("engine", "?").lower(),
        "in_flight": _in_flight(worker),
        "rate": f"{rate:,.0f} tok/s",
        "finished": f"finished {number(worker, 'completed'):,.0f}",
        **dict(_card(worker)),
    }
    marks = list(_marks(worker))
    if _counts(worker) and rate < SLOW_SHARE * median:
        share = f"{100 * rate / median:.0f} % of median"
        marks.insert(0, f"<- slowest: {share}" if rate == slowest else f"<- slow: {share}")
    return _Row(cells, "  ".join(marks), _asked(worker), rate)


def _since(beat: str, at: float | None) -> str:
    """Return how long ago a heartbeat was, which RQ writes as 2026-01-31T23:59:59.000000Z."""
    try:
        seconds = (at or 0.0) - datetime.fromisoformat(beat).timestamp()
    except ValueError:
        return "ever"
    return f"for {duration(seconds)}" if at and seconds > 0 else f"since {beat[:19]}Z"


def _card(worker: WorkerInfo) -> Iterator[tuple[str, str]]:
    gauges = worker.gauges
    if gauges.get("token_usage"):
        yield "kv", f"KV {100 * number(worker, 'token_usage'):.0f} %"
    if gauges.get("gpu_up", "") == "0":
        return
    if gauges.get("gpu_utilization"):
        yield "busy", f"{100 * number(worker, 'gpu_utilization'):.0f} % busy"
    if gauges.get("gpu_power_watts"):
        yield "watts", f"{number(worker, 'gpu_power_watts'):.0f} W"
    if gauges.get("gpu_temperature_celsius"):
        yield "heat", f"{number(worker, 'gpu_temperature_celsius'):.0f} C"
    if gauges.get("accept_length"):
        yield "drafts", f"drafts {number(worker, 'accept_length'):.1f}"


def _marks(worker: WorkerInfo) -> Iterator[str]:
    """Yield what is not as it should be."""
    gauges = worker.gauges
    if number(worker, "failed"):
        yield f"failed {number(worker, 'failed'):,.0f}"
    if number(worker, "engine_starts") > 1:
        yield f"restarts {number(worker, 'engine_starts') - 1:.0f}"
    if gauges.get("gpu_up", "") == "0":
        yield "GPU LOST: the driver cannot read it"
        return
    # A power cap is usual under full load; every other reason costs speed that could be had.
    slowed = sorted(set(filter(None, gauges.get("gpu_throttled", "").split(","))) - {"power_cap"})
    if slowed:
        yield "GPU slowed: " + ", ".join(slowed)
    if gauges.get("gpu_failing"):
        yield "GPU failing: " + gauges["gpu_failing"].replace(",", ", ")
    if gauges.get("engine_lowered"):
        yield f"for want of GPU memory: {gauges['engine_lowered']}"


def _in_flight(worker: WorkerInfo) -> str:
    """Return how many requests are in flight of the window; before there is one, how many."""
    window = number(worker, "window")
    of = f"/{window:.0f}" if window else ""
    return f"{worker.gauges.get('in_flight', '0')}{of} in flight"


def _asked(worker: WorkerInfo) -> str:
    """Return how many requests an engine runs of those that were asked, where that is less."""
    asked, running = number(worker, "asked_running"), number(worker, "max_running")
    if not 0 < running < asked:
        return ""
    slots, each = number(worker, "state_slots"), number(worker, "slots_per_request")
    cause = f": {slots:,.0f} state slots, {each:.0f} each" if slots and each else ""
    return f"(runs {running:,.0f} of {asked:,.0f} asked{cause})"


def _lay_out(rows: list[_Row], width: int) -> list[str]:
    """Return the rows in columns, as many of these as there is room for."""
    widths = {
        name: max((len(row.cells.get(name, "")) for row in rows), default=0) for name in _WORTH
    }
    names = [name for name in _WORTH if widths[name]]
    tail = max((len("  ".join(row.tail)) for row in rows), default=0)
    for worth, room in ((_DEAR, MARKS), (_ALWAYS, FEW_MARKS)):
        names = _chosen(names, widths, width - min(tail, room) - 2 * bool(tail), worth)
    lines = []
    for row in rows:
        cells = [f"{row.cells.get(n, ''):{'<' if n in _LEFT else '>'}{widths[n]}}" for n in names]
        line = "  " + "  ".join([*cells, row.marks] if row.marks else cells).rstrip()
        if row.remark and len(line) + len(row.remark) + 2 <= width:
            line += f"  {row.remark}"
        lines.append(line)
    return lines


def _chosen(names: list[str], widths: dict[str, int], room: int, worth: int) -> list[str]:
    """Return the columns that have room, of those that are worth less the least left out first."""
    while sum(2 + widths[name] for name in names) > room:
        cheap = [name for name in names if _WORTH[name] < worth]
        if not cheap:
            break
        names = [name for name in names if name != min(cheap, key=_WORTH.__getitem__)]
    return names


def _others(rows: list[_Row]) -> str:
    rates = sorted(row.rate for row in rows if row.rate is not None)
    spread = f", {rates[0]:,.0f} to {rates[-1]:,.0f} tok/s each" if rates else ""
    return f"  ... and {len(rows):,} more{spread}"
