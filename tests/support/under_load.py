"""The suite several times in a row while another process takes a core; its record.

    python -m tests.support.under_load --times 3 --record docs/records/suite.md

A test that waits for luck passes on a quiet machine and fails on a busy one. Exits with 1 if any
test of any run failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.support.fault_table import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITE = ["-n", "4", "--dist", "loadgroup", "-m", "not slow and not faults", "-q"]
# Ends with its parent, however that ended: a forgotten one slows down all that comes after.
BURN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
HEAD = """\
# The suite under load

Written by `make test-thrice`: the tests of `make test`, {times} times in a row, beside {burners}
that did nothing but count, on {cores} cores ({machine}), Python {python}, at {commit}.

| run | began (UTC) | passed | failed | skipped | minutes | load average at its end |
| --- | --- | --- | --- | --- | --- | --- |
"""


@dataclass
class Run:
    """One run of the suite."""

    began: datetime
    passed: int
    failed: list[str]
    skipped: int
    seconds: float
    load: float

    def row(self, number: int) -> str:
        return (
            f"| {number} | {self.began:%Y-%m-%d %H:%M} | {self.passed:,} | {len(self.failed)} "
            f"| {self.skipped} | {self.seconds / 60:.1f} | {self.load:.1f} |\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--burners", type=int, default=1, help="processes that take a core each")
    parser.add_argument("--record", type=Path, help="write the table to this file")
    parser.add_argument("pytest", nargs="*", help="instead of the whole suite, after --")
    options = parser.parse_args()
    runs = []
    with burners(options.burners):
        for number in range(1, options.times + 1):
            runs.append(run_suite(options.pytest))
            print(runs[-1].row(number), *runs[-1].failed, sep="\n", flush=True)
            if options.record:
                options.record.write_text(page(runs, options.burners))
    if any(run.failed or not run.passed for run in runs):
        sys.exit(1)


@contextmanager
def burners(count: int) -> Iterator[None]:
    """Processes at the tests' own priority that never wait, while the block runs."""
    processes = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_suite(arguments: list[str]) -> Run:
    """The outcome by pytest's own report file; a run without one counts as a failure."""
    began, start = datetime.now(UTC), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *(arguments or SUITE), f"--junit-xml={report}"]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        seconds = time.monotonic() - start
        cases = list(ET.parse(report).iter("testcase")) if report.exists() else []
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    if code and not failed:
        failed = [f"pytest ended with exit code {code}"]
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = max(0, len(cases) - len(failed) - skipped)
    return Run(began, passed, failed, skipped, seconds, os.getloadavg()[1])


def page(runs: list[Run], burning: int) -> str:
    """The record, with the names of what failed."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    head = HEAD.format(
        times=len(runs),
        burners="one process" if burning == 1 else f"{burning} processes",
        cores=psutil.cpu_count(),
        machine=platform.machine(),
        python=platform.python_version(),
        commit=commit,
    )
    rows = "".join(run.row(number) for number, run in enumerate(runs, 1))
    failures = "".join(
        f"- run {number}: `{name}`\n" for number, run in enumerate(runs, 1) for name in run.failed
    )
    return head + rows + ("\n" + failures if failures else "")


if __name__ == "__main__":
    main()
