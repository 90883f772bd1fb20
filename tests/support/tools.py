"""The tools that check deploy files: those of the set-up, and those that some machines lack."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import OTHER_VARIABLES, Settings, names_of, secret_file_variables
from consumer import daemon
from consumer.engine.life import StartBudget

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
ELSEWHERE = {
    "promtool": "Debian's package prometheus, fetched by deploy/setup.sh where apt-get is",
    "prometheus": "Debian's package prometheus, fetched by deploy/setup.sh where apt-get is",
    "systemd-analyze": "Debian's package systemd",
}


SETTINGS = {name for field in Settings.model_fields for name in names_of(field)}
KNOWN_VARIABLES = SETTINGS | secret_file_variables() | (OTHER_VARIABLES - {"GENQ_FAILPOINT"})
# What a consumer may take at its end beyond its drain: the last lease, the deliveries, the engine.
AFTER_DRAIN_SECONDS = daemon.LAST_LEASE_SECONDS + daemon.LAST_DELIVERY_SECONDS
ENGINE_END_SECONDS = StartBudget().stop_seconds


def tool(name: str) -> str:
    """Return the path of a tool; skips the test where it can only come with the system."""
    found = shutil.which(name, path=str(BIN)) or shutil.which(name)
    if found is None and name in ELSEWHERE:
        pytest.skip(f"{name} is not here: {ELSEWHERE[name]}")
    assert found, f"{name} is in requirements/deploy.txt: make setup"
    return found


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run_tool(name: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end; whether it was content is in the answer."""
    return subprocess.run(
        [tool(name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **{"cwd": ROOT, **options},
    )


def accepted(name: str, *arguments: object, **options: object) -> str:
    """Run a tool that must be content; return what it said."""
    done = run_tool(name, *arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
