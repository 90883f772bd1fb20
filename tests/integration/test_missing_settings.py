"""A setting that is missing is said at once: no wait for a server mends it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from common.errors import Exit

NOBODY = "redis://127.0.0.1:1/0"  # with the patience of the defaults, minutes
COMMANDS = {
    "gen-sink": "from consumer.sink.cli import main; main()",
    "gen-consumer": "from consumer.cli import main; main()",
}


@pytest.mark.parametrize("program", COMMANDS)
def test_a_missing_store_is_said_before_any_wait_for_redis(program, tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("GENQ_")}
    env |= {"GENQ_REDIS_URL": NOBODY, "GENQ_STATE_DIR": str(tmp_path), "GENQ_MODEL": "any"}
    words = ["--gpu", "0"] if program == "gen-consumer" else []
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS[program], *words],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == Exit.USAGE, done.stderr
    assert "No object storage is named." in done.stderr
    assert "waiting" not in done.stderr
