"""Rows of Arrow files, as ``datasets`` keeps them: the stream format, and the file format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from producer.sources.parquet import row_of
from producer.sources.records import Fault, Place, Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MAGIC = b"ARRO"  # of ARROW1
STREAM_MAGIC = b"\xff\xff\xff\xff"
_ROWS = 500


def read_arrow(source: BinaryIO, name: str) -> Iterator[Raw | Fault]:
    """Yield the rows of an Arrow file in order; places count rows from 1.

    Memory is bounded by a record batch (``datasets`` writes 1,000 rows in one). Values without a
    JSON form are treated as in Parquet. A file that is cut short is a fault behind its whole
    batches: its end mark is missing.
    """
    number = 0
    try:
        for batch in _batches(source):
            for start in range(0, batch.num_rows, _ROWS):
                for value in batch.slice(start, _ROWS).to_pylist():
                    number += 1
                    yield row_of(Place(name, number), value)
    except (pa.ArrowException, OSError) as error:
        reason = f"the Arrow data cannot be read ({str(error).splitlines()[0]})"
        yield Fault(Place(name, number + 1), reason, ends=True)


def _batches(source: Any) -> Iterator[pa.RecordBatch]:
    if source.read(len(FILE_MAGIC)) == FILE_MAGIC:
        source.seek(0)
        with pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        return
    source.seek(0)
    with pa.ipc.open_stream(source) as reader:
        yield from reader
    source.seek(-8, 2)
    if source.read(8) != STREAM_MAGIC + bytes(4):
        raise pa.ArrowInvalid("it is cut short: the mark at its end is missing")
