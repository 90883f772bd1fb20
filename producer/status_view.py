"""A run's state in words: pure functions from what was read to lines of text, or to JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from common.audit import flagged
from producer.status_data import number
from producer.status_state import duration, eta, next_command, state_of
from producer.status_store import one_line

if TYPE_CHECKING:
    from common.audit import RunCounts
    from common.queue.workers import WorkerInfo
    from producer.status_data import Rate, RunStatus, StoredOnly
    from producer.status_store import Example

JSON_VERSION = 1
MAX_WIDTH = 100
_BAR = 20
_SLOW_SHARE = 0.8  # of the median worker's rate
_CLOSE = 1.1  # two ends of a range that are this close are one


def screen(status: RunStatus, *, width: int = MAX_WIDTH) -> str:
    """Return a run's screen: eight lines at most, and one for each worker."""
    counts = status.counts
    word, cause = state_of(status)
    finished = counts.committed + counts.dead
    lines = [
        f"{status.info.run}  {word}" + (f": {cause}" if cause else ""),
        f"[{bar(finished, counts.total)}] {_progress(finished, counts.total)}"
        + _flagged(status.flagged),
        _places(counts),
        *(_pace(status) if word != "held" else ()),
        _failures(status),
        _children(status),
        "; ".join(status.problems[:1]),
        *(_example(one) for one in status.examples),
    ]
    body = [line for line in lines if line] + worker_lines(status.workers)
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
    """Return a line in as many as the width needs; what goes on is indented."""
    return textwrap.wrap(
        line,
        min(width, MAX_WIDTH),
        subsequent_indent="    ",
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    ) or [""]


def row(status: RunStatus, *, width: int = MAX_WIDTH) -> str:
    """Return one line for a run among several."""
    counts = status.counts
    word, cause = state_of(status)
    finished = counts.committed + counts.dead
    line = f"{status.info.run:<24} {word:<10} {_progress(finished, counts.total)}"
    if counts.dead:
        line += f", {counts.dead:,} dead"
    if cause and word not in ("done", "finishing"):
        line += f" ({cause})"
    return line if len(line) <= width else line[: width - 3] + "..."


def worker_lines(workers: list[WorkerInfo]) -> list[str]:
    """Return a line for each worker, the fastest first; the slow ones are marked."""
    ordered = sorted(workers, key=lambda one: (-number(one, "tokens_per_second"), one.name))
    rates = sorted(number(one, "tokens_per_second") for one in workers if not one.silent)
    median = rates[len(rates) // 2] if rates else 0.0
    return [_worker(one, median if len(rates) > 1 else 0.0) for one in ordered]


def _worker(worker: WorkerInfo, median: float) -> str:
    gauges = worker.gauges
    if worker.silent:
        since = worker.last_heartbeat[:19].replace("T", " ")  # RQ's: 2026-01-31T23:59:59.000000Z
        return f"  {worker.name}  silent since {since} UTC  finished {worker.finished:,}"
    if not gauges:
        return f"  {worker.name}  {worker.state}  finished {worker.finished:,}"
    rate = number(worker, "tokens_per_second")
    text = (
        f"  {worker.name}  {gauges.get('engine', '?')}"
        f"  {gauges.get('in_flight', '0')}/{gauges.get('max_running', '?')} in flight"
        f"{_asked(worker)}"
        f"  {rate:,.0f} tok/s  finished {number(worker, 'completed'):,.0f}"
    )
    if number(worker, "failed"):
        text += f"  failed {number(worker, 'failed'):,.0f}"
    if number(worker, "engine_starts") > 1:
        text += f"  restarts {number(worker, 'engine_starts') - 1:.0f}"
    text += "  <- slow" if rate < _SLOW_SHARE * median else ""
    text += _card(worker)
    if gauges.get("engine_lowered"):
        text += f"  for want of GPU memory: {gauges['engine_lowered']}"
    return text


def _asked(worker: WorkerInfo) -> str:
    """Return what was asked beside what came of it, where that is less."""
    asked, running = number(worker, "asked_running"), number(worker, "max_running")
    if not 0 < running < asked:
        return ""
    slots, each = number(worker, "state_slots"), number(worker, "slots_per_request")
    cause = f": {slots:,.0f} state slots, {each:.0f} each" if slots and each else ""
    return f" ({asked:,.0f} asked{cause})"


def _card(worker: WorkerInfo) -> str:
    """Return how the card is: figures where there are any, and what is wrong with it in words."""
    gauges = worker.gauges
    up = gauges.get("gpu_up", "")
    if up == "0":
        return "  GPU LOST: the driver cannot read it"
    parts = []
    if gauges.get("gpu_utilization"):
        parts.append(f"{100 * number(worker, 'gpu_utilization'):.0f} % busy")
    if gauges.get("gpu_power_watts"):
        parts.append(f"{number(worker, 'gpu_power_watts'):.0f} W")
    if gauges.get("gpu_temperature_celsius"):
        parts.append(f"{number(worker, 'gpu_temperature_celsius'):.0f} C")
    if gauges.get("accept_length"):
        parts.append(f"drafts {number(worker, 'accept_length'):.1f}")
    # A power cap is usual under full load; every other reason costs speed that could be had.
    slowed = sorted(set(filter(None, gauges.get("gpu_throttled", "").split(","))) - {"power_cap"})
    if slowed:
        parts.append("GPU slowed: " + ", ".join(slowed))
    if gauges.get("gpu_failing"):
        parts.append("GPU failing: " + gauges["gpu_failing"].replace(",", ", "))
    return "".join(f"  {part}" for part in parts)


def _rates(status: RunStatus) -> str:
    parts = []
    if status.recent:
        parts.append(f"now {_rate(status.recent)}")
    if status.average:
        parts.append(f"average {_rate(status.average)}")
    wasted, useful = status.counts.wasted_tokens, status.counts.completion_tokens
    if wasted:
        parts.append(f"wasted {percent(wasted, wasted + useful)} of tokens")
    return ", ".join(parts)


def _rate(rate: Rate) -> str:
    digits = 1 if rate.completions < 100 else 0
    return f"{rate.completions:,.{digits}f}/s ({rate.tokens:,.0f} tok/s)"


def _eta_text(status: RunStatus) -> str:
    found = eta(status)
    if found is None:
        return ""
    best, worst = found
    if worst <= best * _CLOSE:
        return f"done in about {duration((best + worst) / 2)}"
    return f"done in {duration(best)} to {duration(worst)}"


def _commit_text(status: RunStatus) -> str:
    since = status.counts.since_commit
    return "" if since is None else f"last commit {duration(since)} ago"


def _failures(status: RunStatus) -> str:
    parts: list[str] = []
    for name, classes in (("dead", status.dead_by_class), ("failed tries", status.counts.failures)):
        top = sorted(classes.items(), key=lambda pair: (-pair[1], pair[0]))
        if top:
            more = f", {len(top) - 3} more" if len(top) > 3 else ""
            parts.append(f"{name}: " + ", ".join(f"{n:,} {c}" for c, n in top[:3]) + more)
    return "; ".join(parts)


def _pace(status: RunStatus) -> tuple[str, str]:
    coming = (_eta_text(status), _commit_text(status))
    return _rates(status), ", ".join(part for part in coming if part)


def _flagged(kept: dict[str, int]) -> str:
    """Tell of what is kept and not ok, so that nobody takes the number before it for good ones."""
    top = list(kept.items())
    more = f", {len(top) - 3} more" if len(top) > 3 else ""
    told = ", ".join(f"{count:,} {name}" for name, count in top[:3]) + more
    return f"; kept but flagged: {told}" if told else ""


def _children(status: RunStatus) -> str:
    told = [
        f"{one.run} ({one.committed:,} of {one.items:,} {one.reason} redone)"
        for one in status.children
    ]
    return f"children: {', '.join(told)}" if told else ""


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


def stored_json(found: StoredOnly) -> dict[str, Any]:
    """Return the same as data."""
    return {
        "version": JSON_VERSION,
        "run": found.manifest.run,
        "state": "done" if found.success else "not_in_redis",
        "counts": {"total": found.manifest.items, "committed": found.committed},
        "flagged": flagged(found.verdicts),
    }


def run_json(status: RunStatus) -> dict[str, Any]:
    """Return a run's state as data. Fields are only ever added."""
    counts = asdict(status.counts)
    word, cause = state_of(status)
    left = eta(status)
    names = ("total", "loaded", "queued", "waiting", "leased", "generated", "committed", "dead")
    return {
        "version": JSON_VERSION,
        "run": status.info.run,
        "state": word,
        "cause": cause,
        "queue_state": status.info.state,
        "epoch": status.info.epoch,
        "model": status.info.model,
        "priority": status.info.priority,
        "created": status.info.created,
        "at": counts["at"],
        "counts": {name: counts[name] for name in names},
        "rate": {
            "recent": asdict(status.recent) if status.recent else None,
            "average": asdict(status.average) if status.average else None,
        },
        "eta_seconds": list(left) if left else None,
        "tokens": {
            "prompt": counts["prompt_tokens"],
            "completion": counts["completion_tokens"],
            "wasted": counts["wasted_tokens"],
        },
        "failures": counts["failures"],
        "dead_by_class": status.dead_by_class,
        "verdicts": counts["verdicts"],
        "flagged": status.flagged,
        "canary": {**counts["canary"], "worst": status.counts.canary.worst},
        "examples": [asdict(one) for one in status.examples],
        "children": [asdict(one) for one in status.children],
        "seconds_since": {name: counts[f"since_{name}"] for name in ("lease", "result", "commit")},
        "problems": status.problems,
        "workers": [asdict(worker) for worker in status.workers],
        "next": next_command(status),
    }
