"""Where one record ends and the next begins.

Lines end at a line feed and nowhere else: U+2028, U+0085, a form feed or a NUL are text. The
elements of a top-level JSON array are found by counting brackets, so that an array of any length
is read in bounded memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from producer.sources.records import StreamError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TOKEN = re.compile(rb'\\.|["{}\[\],]', re.DOTALL)
_BEHIND = "there is text behind the end of the JSON array"


def split_lines(pieces: Iterable[bytes], *, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield ``(line number, line)`` without its line feed; None for a line of over ``limit`` bytes.

    An over-long line is passed over without being held in memory. The last line needs no line feed.
    Numbers count from 1.
    """
    number = 1
    line: list[bytes] = []
    size = 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        size += len(first)
        if size <= limit:
            line.append(first)
        for other in others:
            yield number, b"".join(line) if size <= limit else None
            number += 1
            line, size = [other] if len(other) <= limit else [], len(other)
    if size:
        yield number, b"".join(line) if size <= limit else None


def split_array(pieces: Iterable[bytes], *, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield ``(line number, element)`` of a top-level JSON array; None for an over-long element.

    Promises no more than that the brackets match: each element is still to be parsed.

    Raises:
        StreamError: the array is cut short, or something stands behind it.
    """
    scan = _ArrayScan(limit)
    for piece in _whole_escapes(pieces):
        yield from scan.feed(piece)
    if scan.depth or not scan.ended:
        raise StreamError("the JSON array is cut short: its closing bracket is missing")


def _whole_escapes(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes, never cutting between a backslash and what it escapes."""
    held = b""
    for piece in pieces:
        whole = held + piece
        slashes = len(whole) - len(whole.rstrip(b"\\"))
        cut = len(whole) - slashes % 2
        yield whole[:cut]
        held = whole[cut:]
    if held:
        yield held


class _ArrayScan:
    """The state between two pieces of an array."""

    def __init__(self, limit: int) -> None:
        self.depth = 0
        self.ended = False
        self._limit = limit
        self._in_string = False
        self._line = 1
        self._element = bytearray()
        self._over = False

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes | None]]:
        at = 0
        for match in _TOKEN.finditer(piece):
            token = match[0]
            if token == b'"':
                self._in_string = not self._in_string
            elif self._in_string or len(token) == 2:
                continue
            elif self.ended:
                raise StreamError(_BEHIND)
            elif self._is_edge(token):
                yield from self._take(piece[at : match.start()], ends=True)
                at = match.end()
        yield from self._take(piece[at:], ends=False)

    def _is_edge(self, token: bytes) -> bool:
        """Count brackets; tell whether an element (or the text before the array) ends here."""
        if token in b"[{":
            self.depth += 1
            return self.depth == 1
        if token in b"]}":
            self.depth -= 1
            self.ended = self.ended or self.depth == 0
            return self.depth == 0
        return self.depth == 1

    def _take(self, text: bytes, *, ends: bool) -> Iterator[tuple[int, bytes | None]]:
        if self.ended and not ends and text.strip():
            raise StreamError(_BEHIND)
        self._over = self._over or len(self._element) + len(text) > self._limit
        self._element += text if not self._over else b"\n" * text.count(b"\n")
        if not ends:
            return
        whole = bytes(self._element)
        body = whole.lstrip()
        start = self._line + whole[: len(whole) - len(body)].count(b"\n")
        self._line += whole.count(b"\n")
        if self._over or body.rstrip():
            yield start, None if self._over else body.rstrip()
        self._element.clear()
        self._over = False
