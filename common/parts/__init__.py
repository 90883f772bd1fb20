"""The format of a part: how completions become one object of ``data/``, and come back.

Two formats, one schema (:mod:`common.parts.schema`): Parquet and zstd-compressed JSON lines. Each
part carries the token of its writer in its body, so no two writers ever make equal bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from common.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from common.ids import Item
    from common.records import Completion

SUFFIXES = ("parquet", "jsonl.zst")
WRITER = "genq-writer"  # the token's name in the object's metadata and in the body


class PartColumns(Protocol):
    """A part that is open, to be read by columns."""

    def rows(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield these columns of each completion, in order, as the schema has them.

        One that the part does not have, since an older sink wrote it, is left out. Raises
        ValueError if the part is damaged.
        """


class PartCodec(Protocol):
    """One format. All calls are pure; none of them does I/O but `open`, on what it is given."""

    suffix: str
    content_type: str

    def encode(self, completions: Sequence[Completion], token: str) -> bytes:
        """Return one part. Raises ValueError if a completion does not fit the schema."""

    def decode(self, data: bytes) -> Iterator[Completion]:
        """Yield the completions in their order. Raises ValueError if the part is damaged."""

    def items_of(self, data: bytes) -> list[Item]:
        """Return which items the part holds, in order. Raises ValueError if it is damaged."""

    def token_of(self, data: bytes) -> str:
        """Return the writer's token. Raises ValueError if the part is damaged."""

    def open(self, source: BinaryIO) -> PartColumns:
        """Open a part to read single columns of it; Parquet reads no more than those need.

        Raises ValueError if it is damaged, and whatever ``source`` raises.
        """


def codec_for(suffix: str) -> PartCodec:
    """Return the codec of a file suffix: ``parquet`` or ``jsonl.zst``.

    Raises:
        UsageError: there is no such format.
    """
    if suffix == "parquet":
        from common.parts.parquet import ParquetCodec  # noqa: PLC0415 - pyarrow takes 0.3 s

        return ParquetCodec()
    if suffix == "jsonl.zst":
        from common.parts.jsonl import JsonlCodec  # noqa: PLC0415 - beside its sibling

        return JsonlCodec()
    raise UsageError(
        f"There is no format {suffix!r}.", fix=f"Choose one of: --format {' | '.join(SUFFIXES)}"
    )
