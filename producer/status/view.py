"""A run's state in words: pure functions from what was read to lines of text, or to JSON."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from common.audit import flagged
from common.duration import duration
from producer.status.rows import worker_lines
from producer.status.state import (
    cost,
    eta,
    label,
    next_command,
    stalled_seconds,
    state_of,
)
from producer.status.store import one_line

if TYPE_CHECKING:
    from common.audit import RunCounts
    from producer.status.data import Rate, RunStatus, StoredOnly
    from producer.status.store import Child, Example

MAX_WIDTH = 100
LINES = 8  # of a screen, without the rows of workers
_BAR = 20
_INDENT = "    "
_CLOSE = 1.03  # two ends of a range that are this close are one


def screen(status: RunStatus, *, width: int = MAX_WIDTH, rows: int | None = None) -> str:
    """Return a run's screen: eight lines at most, and one for each worker.

    On a narrow screen a line goes on in a second one, and rows of workers have fewer columns; with
    ``rows`` no more of these are shown.
    """
    counts = status.counts
    word, _ = state_of(status)
    finished = counts.committed + counts.dead
    going = word not in ("held", "damaged")
    lines = [
        f"{status.info.run}  {label(status)}",
        f"[{bar(finished, counts.total)}] {_progress(finished, counts.total)}"
        + _flagged(status.flagged),
        _places(counts),
        _pace(status) if going else "; ".join(status.problems[:1]),
        _commit_and_cost(status) if going else "",
        _wrong(status),
        _children(status),
        *(_example(one) for one in status.examples),
    ]
    width = min(width, MAX_WIDTH)
    body = [line for line in lines if line]
    body += worker_lines(status.workers, width=width, most=rows, at=counts.at)
    body.append(f"Next: {next_command(status)}")
    return "\n".join(part for line in body for part in fold(line, width))


def _progress(done: int, total: int) -> str:
    return f"{percent(done, total)}  {done:,} of {total:,}"


def _places(counts: RunCounts) -> str:
    places = {
        "queued": counts.queued,
        "waiting retry": counts.waiting,
        "leased": counts.leased,
        "generated": counts.generated,
        "committed": counts.committed,
        "dead": counts.dead,
    }
    return ", ".join(f"{name} {count:,}" for name, count in places.items())


def fold(line: str, width: int) -> list[str]:
    """Return a line in as many as the width needs; what goes on is indented.

    It is broken behind a `;` or a `,` where that is possible, so that numbers keep their words.
    """
    if len(line) <= width:
        return [line]
    lines: list[str] = []
    for piece in re.split(r"(?<=[;,]) (?=\S)", line):
        if lines and len(lines[-1]) + 1 + len(piece) <= width:
            lines[-1] += f" {piece}"
            continue
        indent = _INDENT if lines else ""
        lines += textwrap.wrap(
            piece,
            width,
            initial_indent=indent,
            subsequent_indent=_INDENT,
            break_on_hyphens=False,
            break_long_words=False,
            replace_whitespace=False,
        )
    return lines


def row(status: RunStatus, *, width: int | None = MAX_WIDTH) -> str:
    """Return one line for a run among several; None: of any length."""
    counts = status.counts
    word, cause = state_of(status)
    finished = counts.committed + counts.dead
    line = f"{status.info.run:<24} {word:<10} {_progress(finished, counts.total)}"
    if counts.dead:
        line += f", {counts.dead:,} dead"
    if left := _eta_text(status):
        line += f", {left}"
    if cause and word not in ("done", "finishing"):
        line += f" ({cause})"
    return line if width is None or len(line) <= width else line[: width - 3] + "..."


def _pace(status: RunStatus) -> str:
    parts = []
    if status.recent and (status.recent.completions or status.recent.tokens):
        parts.append(f"now {_rate(status.recent)}")
    if status.average:
        parts.append(f"average {_rate(status.average)}")
    # Of a run that stands still the first line says for how long; it has no end.
    coming = _eta_text(status) if stalled_seconds(status) is None else ""
    return "; ".join(filter(None, (", ".join(parts), coming)))


def _rate(rate: Rate) -> str:
    digits = 1 if rate.completions < 100 else 0
    return f"{rate.completions:,.{digits}f}/s ({rate.tokens:,.0f} tok/s)"


def _eta_text(status: RunStatus) -> str:
    found, counts = eta(status), status.counts
    if found is None:
        return ""
    if not counts.queued and not counts.waiting:  # what is left depends on single answers
        return f"the last {counts.leased:,} are under way"
    best, worst = found
    if worst <= best * _CLOSE:
        return f"done in about {duration((best + worst) / 2)}"
    return f"done in {duration(best)} to {duration(worst)}"


def _commit_and_cost(status: RunStatus) -> str:
    since, part = status.counts.since_commit, status.last_part
    which = f" part {part:,}," if part is not None else ""
    commit = "" if since is None else f"last commit{which} {duration(since)} ago"
    return "; ".join(filter(None, (commit, _cost_text(status))))


def _cost_text(status: RunStatus) -> str:
    found = cost(status)
    if found is None:
        return ""
    total = found.total
    if status.price is None:
        in_all = f", {_range(*total)} in all" if total else ""
        return f"{_hours(found.hours)} GPU-hours so far{in_all}"
    in_all = f", {_range(total[0] * status.price, total[1] * status.price)} in all" if total else ""
    so_far = _hours(found.hours * status.price)
    return f"cost {so_far} so far{in_all} (at {status.price:,.2f} a GPU-hour)"


def _range(low: float, high: float) -> str:
    return _hours(low) if high <= low * _CLOSE else f"{_hours(low)} to {_hours(high)}"


def _hours(amount: float) -> str:
    return f"{amount:,.2f}" if amount < 100 else f"{amount:,.0f}"


def _wrong(status: RunStatus) -> str:
    """Return what went wrong: failures by class, and the work that was thrown away."""
    parts: list[str] = []
    dead = {name: _scaled(n, status) for name, n in status.dead_by_class.items()}
    about = "about " if dead and status.dead_looked_at < status.counts.dead else ""
    for name, classes in (("dead", dead), ("failed tries", status.counts.failures)):
        top = sorted(classes.items(), key=lambda pair: (-pair[1], pair[0]))
        if top:
            more = f", {len(top) - 3} more" if len(top) > 3 else ""
            near = about if name == "dead" else ""
            parts.append(f"{name}: {near}" + ", ".join(f"{n:,} {c}" for c, n in top[:3]) + more)
    wasted, useful = status.counts.wasted_tokens, status.counts.completion_tokens
    if wasted:
        parts.append(f"wasted {percent(wasted, wasted + useful)} of tokens")
    return "; ".join(parts)


def _scaled(count: int, status: RunStatus) -> int:
    """Return a count of some of the dead letters as one of all of them."""
    looked_at = status.dead_looked_at
    return (
        round(count * status.counts.dead / looked_at) if looked_at < status.counts.dead else count
    )


def _flagged(kept: dict[str, int] | None) -> str:
    """Tell of what is kept and not ok, so that nobody takes the number before it for good ones."""
    if kept is None:
        return "; how many are flagged is not known"
    top = list(kept.items())
    more = f", {len(top) - 3} more" if len(top) > 3 else ""
    told = ", ".join(f"{count:,} {name}" for name, count in top[:3]) + more
    return f"; kept but flagged: {told}" if told else ""


def _children(status: RunStatus) -> str:
    told = [f"{one.run} ({_redone(one)})" for one in status.children]
    return f"children: {', '.join(told)}" if told else ""


def _redone(child: Child) -> str:
    """Return how far a child run is, and its state where it does not go on by itself."""
    if child.state == "not_in_redis":  # Redis alone counts what it commits
        return f"{child.items:,} {child.reason}, not in Redis"
    state = f", {child.state}" if child.state in ("cancelled", "held", "paused") else ""
    told = f"{child.committed:,} of {child.items:,} {child.reason} redone"
    if child.ok is not None and child.ok < child.committed:  # the rest came out no better
        told += f", {child.ok:,} ok"
    return told + state


def _example(one: Example) -> str:
    name = f"row {one.row:,}" + (f" {one_line(one.row_id)}" if one.row_id else "")
    return f'  {name}: "{one.prompt}" -> {one.verdict}: {one.answer or "nothing"}'


def bar(done: int, total: int) -> str:
    """Return a bar of ASCII signs; full only when all is done."""
    full = _BAR * done // total if total else _BAR
    return "#" * full + "." * (_BAR - full)


def percent(part: int, whole: int) -> str:
    """Return a share, rounded down: 100 % means all."""
    return f"{1000 * part // whole / 10 if whole else 100.0:.1f} %"


def stored_screen(found: StoredOnly) -> str:
    """Return what to say of a run that only object storage knows."""
    manifest = found.manifest
    if found.success:
        return (
            f"{manifest.run}  done, and no longer in Redis: {found.committed:,} of"
            f" {manifest.items:,} committed{_flagged(flagged(found.verdicts))}"
            f"\nNext: gen-producer verify {manifest.run}"
        )
    return (
        f"{manifest.run}  not in Redis; object storage has {found.committed:,} of"
        f" {manifest.items:,} completions\nNext: gen-producer load --run {manifest.run}"
    )
