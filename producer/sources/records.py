"""What readers of a data set hand on: rows as they were found, and faults, each with a place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where something stands: a file (or ``-``, or an address) and a line or row, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Raw(NamedTuple):
    """One row as it was found: a JSON object, not yet looked into."""

    place: Place
    value: dict[str, Any]
    replaced: int = 0  # lone surrogates that became U+FFFD


BAD_ROW = "bad_row"
TOO_LONG = "too_long"


class Fault(NamedTuple):
    """Something that is not a row.

    ``kind`` is the class that the consumer would give it: ``bad_row`` or ``too_long``. One that
    ``ends`` its file is no row at all: how many are behind it nobody knows, so none may be passed
    over for it.
    """

    place: Place
    reason: str
    kind: str = BAD_ROW
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a stranger's file is taken on trust."""

    row_bytes: int = 10 * 2**20
    expansion: int = 500  # unpacked bytes per packed byte, once ``expansion_floor`` are out
    expansion_floor: int = 64 * 2**20


class RowError(ValueError):
    """A row cannot be used; the text says why, without quoting the row."""


class StreamError(ValueError):
    """A file cannot be read on: it is cut short, not what it says, or a decompression bomb."""
