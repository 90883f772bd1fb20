"""Files that are whole or not there: written beside their name, then renamed.

A killed export leaves nothing under a final name, only a hidden ``.NAME.partial``, which the next
one writes over. Two exports into one place do not mix: the second is refused while the first runs.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from common import codec
from common.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

SUFFIXES = {"gz": ".gz", "zst": ".zst", "none": ""}
_GZIP_LEVEL = 6
_HOW = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def packing_of(name: str) -> str:
    """Return how a file of this name is packed: gz, zst or none."""
    return next((kind for kind, end in SUFFIXES.items() if end and name.endswith(end)), "none")


def errors_name(name: str) -> str:
    """Return the name of the error file beside an output file: ``a.errors.jsonl.gz``."""
    packed = SUFFIXES[packing_of(name)]
    stem = name.removesuffix(packed).removesuffix(".jsonl")
    return f"{stem}.errors.jsonl{packed}"


class Packed:
    """Lines into an open file, packed or as they are."""

    def __init__(self, file: BinaryIO, packing: str) -> None:
        self._file = file
        self._inner: Any = file
        if packing == "gz":
            # No name and no time in it: the same completions make the same bytes.
            self._inner = gzip.GzipFile("", "wb", _GZIP_LEVEL, file, 0)
        elif packing == "zst":
            self._inner = codec.zstd_writer(file)

    def write(self, lines: bytes) -> None:
        """Write whole lines."""
        self._inner.write(lines)

    def finish(self) -> None:
        """Write what is still held back; the file under it stays open."""
        if self._inner is not self._file:
            self._inner.close()
        self._file.flush()


class Stream:
    """Standard output, or a pipe or device that OUT names: lines go out as they come."""

    def __init__(self, path: Path | None, packing: str) -> None:
        self._file = sys.stdout.buffer if path is None else path.open("wb")
        self._packed = Packed(cast("BinaryIO", self._file), packing)
        self._ours = path is not None

    def __enter__(self) -> Self:
        return self

    def write(self, lines: bytes) -> None:
        """Write whole lines."""
        self._packed.write(lines)

    def commit(self) -> None:
        """Write what is still held back."""
        self._packed.finish()

    def __exit__(self, *_: object) -> None:
        if self._ours:
            self._file.close()


class WholeFile:
    """A file that appears under its name at :meth:`commit`, or never.

    A context manager. Raises ConflictError on entry if another export writes it now, UsageError if
    it cannot be written there.
    """

    def __init__(self, path: Path, packing: str) -> None:
        self.path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self._packing = packing

    def __enter__(self) -> Self:
        self._file = open_locked(self._partial)
        self._file.truncate(0)
        self._packed = Packed(self._file, self._packing)
        self._done = False
        return self

    def write(self, lines: bytes) -> None:
        """Write whole lines."""
        self._packed.write(lines)

    def commit(self) -> None:
        """Give the file its name, in place of what may be there; it is on disk then."""
        self._packed.finish()
        os.fsync(self._file.fileno())
        self._partial.replace(self.path)
        self._done = True
        sync_folder(self.path.parent)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError) and not error.filename:
            error.filename = str(self.path)  # of a failed write the system does not say where
        if not self._done:
            with suppress(OSError):
                self._partial.unlink()
        with suppress(OSError):
            self._file.close()


def open_locked(path: Path) -> BinaryIO:
    """Open a file to read and write, made if need be, that no other process of ours has open so.

    Raises:
        ConflictError: another one has.
        UsageError: it cannot be opened.
    """
    while True:
        try:
            file = os.fdopen(os.open(path, _HOW, 0o666), "r+b")
        except OSError as error:
            raise no_place(path, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise ConflictError(
                f"Another export writes {path.parent}/{path.name.strip('.')} now.",
                fix="Wait for it, or name another OUT.",
            ) from error
        # Whoever had it may have renamed or removed it between the two calls.
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return cast("BinaryIO", file)
        file.close()


def no_place(path: Path, error: OSError) -> UsageError:
    """Return the refusal of a place that cannot be written, with a way out."""
    if not path.parent.exists():
        return UsageError(
            f"There is no folder {path.parent}.", why=str(error), fix=f"mkdir -p {path.parent}"
        )
    return UsageError(
        f"Nothing can be written in {path.parent}.", why=str(error), fix="Name another OUT."
    )


def sync_folder(folder: Path) -> None:
    """See to it that a new name in a folder outlasts a power cut, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
