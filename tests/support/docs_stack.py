"""One session on the local stack, for the blocks of docs that show it: real servers, real model.

Each command runs in a shell of its own, in a folder that looks like a checkout, with the stack's
environment once there is a stack. A command that was run before is answered as it was then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.docs_blocks import ROOT, tidy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SECONDS = 400.0  # the longest command, on a busy machine
_SHELL = 'if [ -f .genq/demo/env ]; then . .genq/demo/env; fi; eval "$1"'


@contextmanager
def session() -> Iterator[Callable[[str], str]]:
    """Give a function that runs a command line and returns what it printed, tidied."""
    with tempfile.TemporaryDirectory(prefix="genq-docs-") as name:
        folder = Path(name)
        (folder / ".venv").symlink_to(ROOT / ".venv")
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "Makefile").symlink_to(ROOT / "Makefile")
        said: dict[str, str] = {}

        def run(command: str) -> str:
            if command not in said:
                said[command] = tidy(_run(command, folder), folder)
            return said[command]

        try:
            yield run
        finally:
            _run(".venv/bin/gen-local --run demo --stop", folder)


def _run(command: str, folder: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GENQ_")}
    with subprocess.Popen(
        ["bash", "-c", _SHELL, "bash", command],
        cwd=folder,
        env={
            **clean,
            "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
            "COLUMNS": "100",
            "GENQ_LOG_FORMAT": "console",
            "HF_HOME": str(folder / "hf"),
            "NO_COLOR": "1",
            "TERM": "dumb",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    ) as shell:
        try:
            return shell.communicate(timeout=_SECONDS)[0]
        except BaseException:  # a shell that is killed leaves its children
            os.killpg(shell.pid, signal.SIGTERM)
            raise
