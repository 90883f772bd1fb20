"""Bytes of a data set in pieces of bounded size, unpacked where they are packed.

What a file is, is told by its first bytes; its name is not needed, so ``-`` may be packed, too.
"""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Protocol

from producer.sources.records import Limits, StreamError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PIECE_BYTES = 256 * 2**10  # of the file, at a time
UNPACKED_BYTES = 2**20  # of what it unfolds to, at a time
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = tuple(bytes([0x50 + n, 0x2A, 0x4D, 0x18]) for n in range(16))
PACKED_MAGICS = (_GZIP, _ZSTD, *_ZSTD_SKIPPABLE)  # what packed data begins with


class Readable(Protocol):
    """Anything with ``read``: a file, standard input, the answer of an object store."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, and none at the end."""
        ...


class _Decoder(Protocol):
    """One frame or member being unpacked."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def feed(self, data: bytes) -> Iterator[bytes]: ...


class _Gzip:
    """One gzip member."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            yield self._inner.decompress(data, UNPACKED_BYTES)
            data = self._inner.unconsumed_tail


class _Zstd:
    """One zstd frame."""

    def __init__(self) -> None:
        self._inner = zstd.ZstdDecompressor()

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield self._inner.decompress(data, max_length=UNPACKED_BYTES)
        while not self._inner.eof and not self._inner.needs_input:
            yield self._inner.decompress(b"", max_length=UNPACKED_BYTES)


def pieces(source: Readable, limits: Limits) -> Iterator[bytes]:
    """Yield the unpacked bytes of ``source``, never more than a piece at a time.

    Raises:
        StreamError: the packed data is cut short, broken, or unfolds beyond the limits.
    """
    head = _read_at_least(source, 4)
    raw = _chain(head, source)
    if head.startswith(_GZIP):
        yield from _unpack(raw, _Gzip, "gzip", limits)
    elif head.startswith((_ZSTD, *_ZSTD_SKIPPABLE)):
        yield from _unpack(raw, _Zstd, "zstd", limits)
    else:
        yield from raw


def _read_at_least(source: Readable, size: int) -> bytes:
    head = b""
    while len(head) < size and (more := source.read(PIECE_BYTES)):
        head += more
    return head


def _chain(head: bytes, source: Readable) -> Iterator[bytes]:
    if head:
        yield head
    while piece := source.read(PIECE_BYTES):
        yield piece


def _unpack(
    raw: Iterable[bytes], new: type[_Gzip | _Zstd], name: str, limits: Limits
) -> Iterator[bytes]:
    """Yield what all members or frames hold; padding with zeros behind a gzip member is dropped."""
    decoder: _Decoder | None = None
    taken = given = 0
    for piece in raw:
        taken += len(piece)
        rest = piece
        while rest:
            if decoder is None:
                if new is _Gzip and not (rest := rest.lstrip(b"\0")):
                    break
                decoder = new()
            for out in _fed(decoder, rest, name):
                given += len(out)
                if given > max(limits.expansion_floor, limits.expansion * taken):
                    raise StreamError(f"the {name} data unfolds to over {limits.expansion} times")
                yield out
            rest, decoder = (decoder.unused_data, None) if decoder.eof else (b"", decoder)
    if decoder is not None:
        raise StreamError(f"the {name} data is cut short: the rows behind this point are missing")


def _fed(decoder: _Decoder, data: bytes, name: str) -> Iterator[bytes]:
    try:
        yield from filter(None, decoder.feed(data))
    except (zlib.error, zstd.ZstdError) as error:
        raise StreamError(f"the {name} data is broken ({error})") from error
