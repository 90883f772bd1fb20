"""Parts as zstd-compressed JSON lines: one data frame, then one skippable frame that seals it.

Where a row has no id or no reasoning, JSON lines say "", not null: readers that infer a column's
type from the first part cannot take null in it and text in a later one.

Every zstd reader passes over a skippable frame by itself. Ours holds the writer's token and the
checksum of the lines, so that a cut or overwritten part is found by reading it alone.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any, BinaryIO

from common import codec
from common.ids import Item
from common.parts.schema import NULLABLE, from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from common.records import Completion

_MAGIC = 0x184D2A50  # the first of the sixteen that RFC 8878 sets aside for skippable frames
_HEAD = struct.Struct("<II")
_SEAL_BYTES = 4096  # how far from the end the seal may begin
_LIMIT_BYTES = 4 * 2**30


class JsonlCodec:
    """``.jsonl.zst``: opens in DuckDB, ``datasets``, pandas and ``zstdcat``."""

    suffix = "jsonl.zst"
    content_type = "application/zstd"

    def encode(self, completions: Sequence[Completion], token: str) -> bytes:
        """Return one part; raises ValueError if a completion does not fit the schema."""
        try:
            lines = b"".join(
                codec.dumps(_without_nulls(to_record(one))) + b"\n" for one in completions
            )
        except TypeError as error:
            raise ValueError(str(error)) from error
        seal = codec.dumps(
            {
                "writer": token,
                "rows": len(completions),
                "sha256": hashlib.sha256(lines).hexdigest(),
            }
        )
        return codec.compress(lines) + _HEAD.pack(_MAGIC, len(seal)) + seal

    def decode(self, data: bytes) -> Iterator[Completion]:
        """Yield the completions; raises ValueError if the part is damaged."""
        return (from_record(_with_nulls(codec.loads(line))) for line in _lines(data))

    def items_of(self, data: bytes) -> list[Item]:
        """Return the items of the part; raises ValueError if it is damaged."""
        return [Item(codec.loads(line)["k"]) for line in _lines(data)]

    def token_of(self, data: bytes) -> str:
        """Return the writer's token; raises ValueError if the part is damaged."""
        return str(_seal(data)["writer"])

    def open(self, source: BinaryIO) -> JsonlColumns:
        """Open a part, which is read whole; raises ValueError if it is damaged."""
        return JsonlColumns(_lines(source.read()))


class JsonlColumns:
    """See :class:`common.parts.PartColumns`."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def rows(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield these columns of each completion; raises ValueError if a line is damaged."""
        for line in self._lines:
            record = _with_nulls(codec.loads(line))
            yield {name: record[name] for name in names if name in record}


def _without_nulls(record: dict[str, Any]) -> dict[str, Any]:
    return record | {name: record[name] or "" for name in NULLABLE}


def _with_nulls(record: dict[str, Any]) -> dict[str, Any]:
    return record | {name: record.get(name) or None for name in NULLABLE}


def _lines(data: bytes) -> list[bytes]:
    seal = _seal(data)
    text = codec.decompress(data, limit_bytes=_LIMIT_BYTES)
    if hashlib.sha256(text).hexdigest() != seal["sha256"]:
        raise ValueError("the checksum of the lines is not the sealed one")
    return text.splitlines() if not text else text.removesuffix(b"\n").split(b"\n")


def _seal(data: bytes) -> dict[str, Any]:
    start = data.rfind(_MAGIC.to_bytes(4, "little"), max(0, len(data) - _SEAL_BYTES))
    if start < 0 or len(data) - start < _HEAD.size:
        raise ValueError("the part is cut short: it has no seal")
    _, length = _HEAD.unpack_from(data, start)
    body = data[start + _HEAD.size :]
    if len(body) != length:
        raise ValueError("the part is cut short: its seal is not whole")
    seal = codec.loads(body)
    if not isinstance(seal, dict) or not {"writer", "sha256"} <= seal.keys():
        raise ValueError("the part's seal is damaged")
    return seal
