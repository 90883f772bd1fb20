"""Which crash test kills a process where: one list, read by those tests and by their audit.

Whole families are taken as declared, so a new step is killed at by the next run of the tests; a
new family has to be entered here, or `tests/test_failpoints.py` fails.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from common.failpoint import declared

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "consumer", "deploy", "producer")
_DECLARES = re.compile(r"^(failpoint\.)?declare\(", re.MULTILINE)


def declaring_modules() -> dict[str, Path]:
    """The modules that declare failpoints, by name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if _DECLARES.search(path.read_text(encoding="utf-8"))
    }


def _but(family: str, left_out: str) -> list[str]:
    return [name for name in declared(family) if not name.startswith(left_out)]


for _module in declaring_modules():
    importlib.import_module(_module)

CRASH_TESTS = {
    "test_killed_anywhere_the_same_command_goes_on": _but("load.", "load.after_restore"),
    "test_killed_while_it_is_put_back_the_same_command_goes_on": [
        "load.after_create",
        "load.after_restore",
        "load.after_chunk",
    ],
    "test_a_requeue_killed_after_a_loss_of_redis_loses_nothing": declared("requeue."),
    "test_a_mending_load_killed_in_the_middle_goes_on": declared("mend."),
    "test_a_redo_killed_anywhere_goes_on": declared("redo."),
    "test_a_killed_export_leaves_no_half_file": declared("export."),
    "test_a_consumer_killed_as_it_hands_over_loses_and_repeats_nothing": declared("outbox."),
    "test_a_sink_killed_at_any_step_loses_and_repeats_nothing": _but("sink.", "sink.reopen."),
    "test_a_sink_killed_while_reopening_a_run_reopens_it_again": declared("sink.reopen."),
}


def points_of(test: str) -> list[str]:
    """The failpoints that the crash test of this name is parametrised with."""
    return CRASH_TESTS[test]


def one_now(points: list[str]) -> list[Any]:
    """Return them as parameters of which the first alone is for `make test`."""
    return [points[0], *(pytest.param(point, marks=pytest.mark.faults) for point in points[1:])]
