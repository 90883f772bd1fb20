"""The record of chaos runs: a Markdown table that the runs themselves append to."""

from __future__ import annotations

import fcntl
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.faults.chaos import Report

HEAD = """\
# Chaos runs

Each line was appended by the run that it tells of:

    python -m tests.faults.chaos --seed SEED --items N --faults M --record docs/records/chaos.md

The whole pipeline, real processes and servers, under the faults that the seed draws from
`tests/faults/schedule.py`; what is audited is said in `tests/faults/chaos.py`. *Lost*: items
neither in `data/` nor dead-lettered. *Doubled*: items in `data/` twice, or in both. *Samples*: of
the counts, each of which has to add up. *Waste*: tokens that the queue knows to be thrown away.
*Problems*: anything else that was not as promised; 0 in a good run.

"""
COLUMNS = ("when (UTC)", "seed", "items", "faults (kinds)", "seconds", "committed", "dead", "lost")
COLUMNS += ("doubled", "samples", "waste", "problems", "machine")


def append_chaos(path: Path, report: Report) -> None:
    """Append a line, under a lock: runs may end at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        report.seed,
        report.items,
        f"{report.faults} ({report.kinds})",
        f"{report.seconds:.0f}",
        report.committed,
        report.dead,
        report.lost,
        report.doubled,
        report.samples,
        f"{report.waste:.2%}",
        len(report.problems),
        f"{psutil.cpu_count()} cores, {platform.machine()}",
    )
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not path.stat().st_size:
            file.write(HEAD + _line(COLUMNS) + _line(["---"] * len(COLUMNS)))
        file.write(_line(cells))


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"
