"""One stream of rows out of everything that a command line named."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from producer.sources.jsonl import read_json
from producer.sources.records import Fault, Limits, Place, Raw

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from producer.sources.url import Source

_PARQUET_MAGIC = b"PAR1"


def read_rows(sources: Iterable[Source], limits: Limits) -> Iterator[Raw | Fault]:
    """Yield all rows of all sources in order, and a fault in the place of each that is none.

    Raises:
        InputError, UsageError: a source as a whole cannot be read, or changed while it was read.
        StoreError: it lies in object storage, and that fails.
    """
    for source in sources:
        if source.open is None:
            from producer.sources.hub import read_hub  # noqa: PLC0415 - pyarrow only if needed

            yield from read_hub(source.name)
            continue
        with source.open() as stream:
            yield from _read(stream, source.name, limits)


def _read(stream: BinaryIO, name: str, limits: Limits) -> Iterator[Raw | Fault]:
    peek = getattr(stream, "peek", None)
    head = peek(4)[:4] if peek else b""
    if head != _PARQUET_MAGIC:
        yield from read_json(stream, name, limits)
        return
    from producer.sources.parquet import read_parquet  # noqa: PLC0415 - pyarrow only if needed

    if not stream.seekable():
        yield Fault(Place(name, 1), "Parquet cannot be read from a pipe: save it to a file")
        return
    yield from read_parquet(stream, name, limits)
