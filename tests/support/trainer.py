"""Whether torch is here: tests of the trainer's side need it, and the default set-up has none."""

from __future__ import annotations

import importlib.util
import os

import pytest

REQUIRED_VARIABLE = "GENQ_TEST_TORCH"  # set: a missing torch fails the tests instead
COMMAND = "make train-setup"


def need_torch() -> None:
    """Skip the calling module where torch is missing, and say how to get it."""
    if importlib.util.find_spec("torch") is not None:
        return
    if os.environ.get(REQUIRED_VARIABLE):
        pytest.fail(f"{REQUIRED_VARIABLE} is set, and torch is missing: {COMMAND}")
    pytest.skip(f"torch is not installed; get it with: {COMMAND}", allow_module_level=True)
