"""Files for this user alone: the state folder, and what services keep in it.

What lies there decides which process is ended as a leftover and which items count as committed,
so nobody else may put anything there; folders are 0700, files 0600, and drafts have names that
cannot be guessed.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from common.errors import UsageError

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder(path: Path) -> Path:
    """Make a folder, and those above it that are missing, for this user alone; return it.

    Raises:
        UsageError: it is there, and belongs to another user or others may write to it.
        OSError: it cannot be made.
    """
    for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
        missing.mkdir(0o700, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & _OTHERS_MAY_WRITE:
        raise UsageError(
            f"The state folder {path} is not private.",
            why=f"It belongs to user {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):o};"
            " others could have us end a process or skip an item.",
            fix=f"chmod 700 {path}    (or name another: export GENQ_STATE_DIR=...)",
        )
    return path


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user may read, whole or not at all.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(draft).replace(path)
    except OSError:
        with suppress(OSError):
            Path(draft).unlink()
        raise


def open_private(path: Path) -> int:
    """Open a file for reading and writing, made for this user alone if it is not there.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)
