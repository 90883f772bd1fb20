"""The name under which a sink reads results: the same again after a restart.

A sink that comes back under its old name finds at once what it had read and not committed; under
a new one it would have to wait until those results count as left behind.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.ids import new_nonce
from common.private import open_private, private_folder

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

_MOST_SINKS = 64  # on one host, sharing a state folder


class Identity:
    """A name that no other running sink has; held until the process ends or :meth:`close`."""

    def __init__(self, folder: Path) -> None:
        """Take the first free name of the folder.

        Raises:
            StoreError: the folder cannot be written.
            UsageError: others may write there.
        """
        try:
            self._file = _lock_first(private_folder(folder))
            self.name = f"sink-{_host()}-{_secret(self._file)}"
        except OSError as error:
            raise StoreError(
                f"The state folder {folder} cannot be used.",
                why=str(error),
                fix="Name one that can be written: export GENQ_STATE_DIR=...",
            ) from error

    def close(self) -> None:
        """Give the name up."""
        self._file.close()


def _lock_first(folder: Path) -> IO[bytes]:
    for slot in range(_MOST_SINKS):
        file = os.fdopen(open_private(folder / f"sink-{slot}.name"), "rb+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        return file
    raise OSError(f"{_MOST_SINKS} sinks use it already")


def _secret(file: IO[bytes]) -> str:
    """Return the random part of the name, which hosts of equal names do not share."""
    file.seek(0)
    found = file.read().decode("ascii", "replace").strip()
    if not re.fullmatch(r"[0-9a-f]{16}", found):
        found = new_nonce()
        file.seek(0)
        file.truncate()
        file.write(found.encode())
        file.flush()
        os.fsync(file.fileno())
    return found[:8]


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:63]
