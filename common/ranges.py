"""An object of storage as a file: read by ranges, each of which insists on the version opened."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.objectstore import ObjectStat, ObjectStore

_PIECE_BYTES = 4 << 20


class Ranges(io.RawIOBase):
    """An object, read where one looks. Each read is one request; raises StoreError."""

    def __init__(self, store: ObjectStore, found: ObjectStat) -> None:
        self._store, self._key, self._size = store, found.key, found.size
        self._etag = found.etag
        self._at = 0

    def readable(self) -> bool:
        """See io.IOBase."""
        return True

    def seekable(self) -> bool:
        """See io.IOBase."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """See io.IOBase; where it goes is never before the start."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read as much as fits: less only at the object's end."""
        size = min(len(buffer), self._size - self._at)
        if size <= 0:
            return 0
        data = self._store.read_range(self._key, self._at, size, etag=self._etag)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self) -> bytes:
        """Read the rest, in one request."""
        return self.read(max(0, self._size - self._at)) or b""


def lines_of(store: ObjectStore, found: ObjectStat) -> Iterator[bytes]:
    """Yield the lines of an object without their ends; empty ones are left out.

    In memory is a piece of 4 MiB, and a line. Raises StoreError.
    """
    reader = io.BufferedReader(Ranges(store, found), _PIECE_BYTES)
    for line in reader:
        if text := line.rstrip(b"\r\n"):
            yield text
