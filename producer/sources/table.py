"""Rows of CSV and TSV files: the first line names the columns, each further record is a row."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any

from common.codec import loads
from producer.sources.messages import SAMPLING_NAMES
from producer.sources.numbers import refuse_large
from producer.sources.records import Fault, Limits, Place, Raw, RowError, StreamError
from producer.sources.streams import Readable, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

# Columns that are no text: their cells are read as JSON where they are that.
_STRUCTURED = frozenset({"messages", "conversations", "turns", "body", *SAMPLING_NAMES})
_ESCAPED = re.compile("[\udc80-\udcff]")


def read_table(
    source: Readable, name: str, limits: Limits, *, delimiter: str
) -> Iterator[Raw | Fault]:
    """Yield the rows of a table in order; places are lines of the file, from 1.

    Cells are text, but for ``messages``, ``turns`` and sampling settings, which are JSON; an empty
    cell counts as absent. A record of more or fewer cells than the first line has is a fault.
    """
    text = io.TextIOWrapper(
        io.BufferedReader(_Unpacked(pieces(source, limits)), 2**16),
        encoding="utf-8-sig",
        errors="surrogateescape",
        newline="",
    )
    csv.field_size_limit(limits.row_bytes)
    records = csv.reader(text, delimiter=delimiter, strict=True)
    line = 1
    try:
        header = next(records, None)
        if header is None:
            return
        if problem := _wrong_header(header):
            yield Fault(Place(name, 1), problem, ends=True)
            return
        line = records.line_num + 1
        for cells in records:
            if cells:
                yield _row(Place(name, line), header, cells, limits)
            line = records.line_num + 1
    except csv.Error as error:
        yield Fault(Place(name, line), f"the table cannot be read on ({error})", ends=True)
    except StreamError as error:
        yield Fault(Place(name, line), str(error), ends=True)


def _wrong_header(header: list[str]) -> str:
    if len(set(header)) != len(header):
        return "two columns have one name"
    if any(map(_ESCAPED.search, header)) or "\0" in "".join(header):
        return "the first line is not the UTF-8 names of columns"
    return ""


def _row(place: Place, header: list[str], cells: list[str], limits: Limits) -> Raw | Fault:
    if len(cells) != len(header):
        return Fault(place, f"it has {len(cells)} cells, and the first line {len(header)}")
    if any(map(_ESCAPED.search, cells)):
        return Fault(place, "invalid UTF-8 in the row")
    if sum(map(len, cells)) > limits.row_bytes:
        return Fault(place, f"the row is larger than {limits.row_bytes:,} bytes")
    named = zip(header, cells, strict=True)
    try:
        return Raw(place, {name: _value(name, cell) for name, cell in named if cell})
    except RowError as error:
        return Fault(place, str(error))


def _value(name: str, cell: str) -> Any:
    if name not in _STRUCTURED:
        return cell
    try:
        value = loads(cell)
    except ValueError:
        return cell
    refuse_large(cell.encode())
    return value


class _Unpacked(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        while not self._rest:
            piece = next(self._source, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
