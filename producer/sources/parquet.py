"""Rows of Parquet files, a batch at a time."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from producer.sources.records import Fault, Limits, Place, Raw, RowError, StreamError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"PAR1"
_BATCH_ROWS = 500


def read_parquet(source: BinaryIO, name: str, limits: Limits) -> Iterator[Raw | Fault]:
    """Yield the rows of a Parquet file in order; places count rows from 1.

    Memory is bounded by a row group's columns as they are decoded, not by the file. Nulls count
    as absent; what JSON has no form for is written out (decimals, NaN as null) or, for bytes, is a
    fault of the row. A file that says it unfolds beyond the limits is a fault before it is read.
    """
    number = 0
    try:
        # Buffering ahead takes row groups to come into memory, and asks object storage for all of
        # them before the first row is used.
        with pq.ParquetFile(source, pre_buffer=False) as file:
            _check_expansion(file.metadata, limits)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for value in batch.to_pylist():
                    number += 1
                    yield row_of(Place(name, number), value)
    except (pa.ArrowException, OSError) as error:
        reason = f"the Parquet data cannot be read ({str(error).splitlines()[0]})"
        yield Fault(Place(name, number + 1), reason, ends=True)
    except StreamError as error:
        yield Fault(Place(name, number + 1), str(error), ends=True)


def _check_expansion(metadata: Any, limits: Limits) -> None:
    """Refuse a row group that is no group of rows but a bomb. Raises StreamError."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = map(group.column, range(group.num_columns))
        packed = sum(column.total_compressed_size for column in columns)
        if group.total_byte_size > max(limits.expansion_floor, limits.expansion * packed):
            raise StreamError(f"the Parquet data unfolds to over {limits.expansion} times")


def row_of(place: Place, value: dict[str, Any]) -> Raw | Fault:
    """Return a row of Python values as one of JSON values."""
    try:
        return Raw(place, {name: _plain(item) for name, item in value.items() if item is not None})
    except RowError as error:
        return Fault(place, str(error))


def _plain(value: Any) -> Any:
    if isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None  # NaN and infinities have no JSON form
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        # A struct column gives every message all fields that any message has.
        return {name: _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, bytes):
        raise RowError("it holds bytes, which JSON has no form for")
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value and str(value)
