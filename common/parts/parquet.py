"""Parts as Parquet, zstd inside; the writer's token is in the footer. Pages carry checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from common.ids import Item
from common.parts import WRITER
from common.parts.schema import NULLABLE, from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from common.records import Completion

_ZSTD_LEVEL = 3
_READ_ROWS = 64  # as many completions are Python objects at a time
_COLUMN_ROWS = 512  # the same of single columns


def _not_null(name: str, kind: Any) -> Any:
    return pa.field(name, kind, nullable=False)


_MESSAGE = pa.struct([_not_null(name, pa.string()) for name in ("role", "content", "raw")])
_USAGE = pa.struct(
    [
        _not_null(name, pa.int64())
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
    ]
)
_COLUMNS: dict[str, Any] = {
    "k": pa.int64(),
    "row": pa.int64(),
    "sample": pa.int32(),
    "row_id": pa.string(),
    "messages": pa.list_(_not_null("element", _MESSAGE)),
    "content": pa.string(),
    "reasoning_content": pa.string(),
    "input_ids": pa.list_(_not_null("element", pa.int32())),
    "output_ids": pa.list_(_not_null("element", pa.int32())),
    "finish_reason": pa.string(),
    "verdict": pa.string(),
    "usage": _USAGE,
    "seed": pa.int64(),
    "sampling": pa.string(),
    "model": pa.string(),
    "engine": pa.string(),
    "attempt": pa.int32(),
    "worker": pa.string(),
    "started": pa.string(),
    "seconds": pa.float64(),
    "metadata": pa.string(),
    "version": pa.int32(),
    "turns": pa.string(),
    "genq_version": pa.string(),
}
SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=name in NULLABLE) for name, kind in _COLUMNS.items()]
)


class ParquetCodec:
    """``.parquet``: opens in DuckDB, ``datasets``, pandas, polars and Spark."""

    suffix = "parquet"
    content_type = "application/vnd.apache.parquet"

    def encode(self, completions: Sequence[Completion], token: str) -> bytes:
        """Return one part; raises ValueError if a completion does not fit the schema."""
        try:
            table = pa.Table.from_pylist([to_record(one) for one in completions], schema=SCHEMA)
        except (pa.ArrowException, TypeError, UnicodeError) as error:
            raise ValueError(str(error)) from error
        sink = pa.BufferOutputStream()
        pq.write_table(
            table.replace_schema_metadata({WRITER: token}),
            sink,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            write_page_checksum=True,
        )
        return bytes(sink.getvalue().to_pybytes())

    def decode(self, data: bytes) -> Iterator[Completion]:
        """Yield the completions; raises ValueError if the part is damaged."""
        try:
            for batch in _open(data).iter_batches(batch_size=_READ_ROWS):
                yield from (from_record(record) for record in batch.to_pylist())
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"damaged Parquet: {error}") from error

    def items_of(self, data: bytes) -> list[Item]:
        """Return the items of the part; raises ValueError if it is damaged."""
        try:
            return [Item(k) for k in _open(data).read(columns=["k"])["k"].to_pylist()]
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ValueError(f"damaged Parquet: {error}") from error

    def token_of(self, data: bytes) -> str:
        """Return the writer's token; raises ValueError if the part is damaged."""
        found = (_open(data).schema_arrow.metadata or {}).get(WRITER.encode())
        if found is None:
            raise ValueError("the part names no writer")
        return str(found.decode())

    def open(self, source: BinaryIO) -> ParquetColumns:
        """Open a part by its footer; raises ValueError if it is damaged."""
        return ParquetColumns(_parquet(source))


class ParquetColumns:
    """See :class:`common.parts.PartColumns`."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def rows(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield these columns of each completion; raises ValueError if the part is damaged."""
        try:
            for batch in self._file.iter_batches(batch_size=_COLUMN_ROWS, columns=list(names)):
                yield from batch.to_pylist()
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ValueError(f"damaged Parquet: {error}") from error


def _open(data: bytes) -> Any:
    return _parquet(pa.BufferReader(data))


def _parquet(source: Any) -> Any:
    try:
        # Buffered ahead, neighbouring columns come in one read: one request of object storage.
        return pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=True)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"damaged Parquet: {error}") from error
