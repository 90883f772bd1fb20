"""One stream of rows out of everything that a command line named."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from producer.sources.folder import suffix_of
from producer.sources.jsonl import read_json
from producer.sources.records import Fault, Limits, Place, Raw
from producer.sources.streams import PACKED_MAGICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from producer.sources.url import Source

_PARQUET_MAGIC = b"PAR1"
_ARROW_MAGICS = (b"ARRO", b"\xff\xff\xff\xff")  # of a file; of a stream
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_BINARY = {".parquet": "Parquet", ".arrow": "Arrow", ".gz": "gzip", ".zst": "zstd"}
_LOOK_BYTES = 512


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
    start = peek(_LOOK_BYTES)[:_LOOK_BYTES] if peek else b""
    head = start[:4]
    if head == _PARQUET_MAGIC or head in _ARROW_MAGICS:
        yield from _read_columns(stream, name, limits, head)
    elif kind := _belied(name, start):
        reason = f"the file is no {kind} file, which its name says, nor is it text"
        yield Fault(Place(name, 1), reason, ends=True)
    elif delimiter := _DELIMITERS.get(suffix_of(name)):
        from producer.sources.table import read_table  # noqa: PLC0415 - only if needed

        yield from read_table(stream, name, limits, delimiter=delimiter)
    else:
        yield from read_json(stream, name, limits)


def _belied(name: str, start: bytes) -> str:
    """Return what a file is by its name, where it is neither that nor text, or "".

    Text under such a name is read as it is: some downloads unpack on the way.
    """
    kind = _BINARY.get(Path(name).suffix.lower(), "")
    if not kind or start.startswith(PACKED_MAGICS):
        return ""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return kind
    return kind if b"\0" in start else ""


def _read_columns(
    stream: BinaryIO, name: str, limits: Limits, head: bytes
) -> Iterator[Raw | Fault]:
    if not stream.seekable():
        kind = "Parquet" if head == _PARQUET_MAGIC else "Arrow"
        reason = f"{kind} cannot be read from a pipe: save it to a file"
        yield Fault(Place(name, 1), reason, ends=True)
    elif head == _PARQUET_MAGIC:
        from producer.sources.parquet import read_parquet  # noqa: PLC0415 - pyarrow only if needed

        yield from read_parquet(stream, name, limits)
    else:
        from producer.sources.arrow import read_arrow  # noqa: PLC0415 - pyarrow only if needed

        yield from read_arrow(stream, name)
