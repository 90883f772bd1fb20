"""Rows of JSON: one object a line, or one top-level array."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from common.codec import loads
from producer.sources.lines import split_array, split_lines
from producer.sources.numbers import refuse_large
from producer.sources.records import Fault, Limits, Place, Raw, RowError, StreamError
from producer.sources.streams import Readable, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_SURROGATES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "�"
_INFINITE = "a number in it is larger than any float: write it as text, in quotes"


def read_json(source: Readable, name: str, limits: Limits) -> Iterator[Raw | Fault]:
    """Yield the rows of a JSON stream in order, and a fault in the place of each that is none.

    A byte order mark, blank lines and Windows line ends are tolerated. A fault of the stream
    itself (cut short, bomb) is the last thing that is yielded. Where an object names a key
    twice the last value counts, as in every JSON reader.
    """
    line = 1
    try:
        for line, text in _records(source, limits):
            place = Place(name, line)
            if text is None:
                yield Fault(place, f"the row is larger than {limits.row_bytes:,} bytes")
                continue
            if not text.strip(_BLANK):
                continue
            try:
                yield _parse(place, text)
            except RowError as error:
                yield Fault(place, str(error))
    except StreamError as error:
        yield Fault(Place(name, line), str(error), ends=True)


def _records(source: Readable, limits: Limits) -> Iterator[tuple[int, bytes | None]]:
    stream = _without_bom(pieces(source, limits))
    first = next(stream, b"")
    if first.startswith(_UTF16):
        raise StreamError("the file is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    # A row is an object, so an opening bracket can only be that of a whole-file array.
    split = split_array if first.lstrip()[:1] == b"[" else split_lines
    yield from split(_with(first, stream), limit=limits.row_bytes)


def _without_bom(stream: Iterator[bytes]) -> Iterator[bytes]:
    first = next(stream, b"")
    while len(first) < len(_BOM) and (more := next(stream, b"")):
        first += more
    yield first.removeprefix(_BOM)
    yield from stream


def _with(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _parse(place: Place, text: bytes) -> Raw:
    replaced = 0
    try:
        value = loads(text)
    except ValueError as error:
        value, replaced = _parse_leniently(text, error)
    if not isinstance(value, dict):
        raise RowError(f"a row must be a JSON object, not {_kind(value)}")
    refuse_large(text)
    return Raw(place, value, replaced)


def _parse_leniently(text: bytes, error: ValueError) -> tuple[Any, int]:
    """Parse what the fast reader refused, if lone surrogates are all that is wrong with it.

    No tokenizer, engine or Parquet file can hold a lone surrogate (it has no UTF-8 form), so each
    becomes U+FFFD, and they are counted.
    """
    if b"\\u" not in text:
        raise RowError(_reason(text, error)) from error
    try:
        value = json.loads(text.decode(), parse_constant=_refuse_constant, parse_float=_finite)
        return without_surrogates(value)
    except RowError:
        raise
    except (ValueError, RecursionError):
        raise RowError(_reason(text, error)) from error


def without_surrogates(value: Any) -> tuple[Any, int]:
    """Return ``value`` with each lone surrogate replaced by U+FFFD, and how many there were."""
    if isinstance(value, str):
        return _SURROGATES.subn(_REPLACEMENT, value)
    if isinstance(value, list):
        cleaned = [without_surrogates(item) for item in value]
        return [item for item, _ in cleaned], sum(count for _, count in cleaned)
    if isinstance(value, dict):
        total = 0
        out = {}
        for key, item in value.items():
            new_key, in_key = _SURROGATES.subn(_REPLACEMENT, key)
            out[new_key], in_item = without_surrogates(item)
            total += in_key + in_item
        return out, total
    return value, 0


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise RowError(_INFINITE)
    return number


def _reason(text: bytes, error: ValueError) -> str:
    try:
        text.decode()
    except UnicodeDecodeError as bad:
        return f"invalid UTF-8 at byte {bad.start + 1} of the row"
    if re.search(rb"[:\[,]\s*-?(NaN|Infinity)\b", text):
        return "NaN and Infinity are no JSON; use null"
    if "infinity" in str(error):
        return _INFINITE
    # The reader's words, without its line number: a row is one line.
    return f"invalid JSON ({re.sub(r': line .*', '', str(error))})"


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
