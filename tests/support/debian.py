"""Tools of the system that some tests need, installed by apt where the tests run as root.

Elsewhere such a test is skipped, and says which package it misses.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 60.0  # for each call of apt
QUICK = ("-qq", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10")


def found_or_installed(package: str, find: Callable[[], Path | None]) -> Path | None:
    """Return what ``find`` finds, if need be after an installation; None: it cannot be had here."""
    if (found := find()) is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    with Path(tempfile.gettempdir(), "genq-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # apt itself does not wait for another
        if find() is None and not _apt("install", "-y", package):
            _apt("update")
            _apt("install", "-y", package)
    return find()


def _apt(*words: str) -> bool:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            ["apt-get", *QUICK, *words], env=env, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
