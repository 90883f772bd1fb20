"""JSON and zstd, in one place: how every record of ours is written and read.

JSON only, never pickle. ``orjson`` refuses lone surrogates and NaN by itself; rows are cleaned
where they come in (:mod:`producer.sources`).
"""

from __future__ import annotations

import sys
from typing import Any, BinaryIO, cast

import orjson

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZSTD_LEVEL_FAST = 1  # results on their way through Redis: CPU counts
ZSTD_LEVEL_STORE = 6  # shards and parts: written once, read often


def dumps(value: Any) -> bytes:
    """Return ``value`` as compact JSON; dataclasses are written as objects.

    Raises:
        TypeError: something in it has no JSON form (orjson.JSONEncodeError).
    """
    return orjson.dumps(value)


def loads(data: bytes | str) -> Any:
    """Return the value of a JSON text.

    Integers of over 64 bits become floats: we write none, and a stranger's text is searched for
    them where it comes in (:mod:`producer.sources.numbers`).

    Raises:
        ValueError: it is not JSON (orjson.JSONDecodeError).
    """
    return orjson.loads(data)


def compress(data: bytes, *, level: int = ZSTD_LEVEL_STORE) -> bytes:
    """Return one zstd frame that holds ``data`` and its size."""
    return bytes(zstd.compress(data, level=level))


def decompress(data: bytes, *, limit_bytes: int) -> bytes:
    """Return what all zstd frames in ``data`` hold.

    Raises:
        ValueError: the data is cut, is not zstd, or would unfold to more than ``limit_bytes``.
    """
    out = bytearray()
    rest = data
    while rest:
        decoder = zstd.ZstdDecompressor()
        try:
            out += decoder.decompress(rest, max_length=limit_bytes - len(out) + 1)
        except zstd.ZstdError as error:
            raise ValueError(f"not zstd: {error}") from error
        if len(out) > limit_bytes:
            raise ValueError(f"unfolds to more than {limit_bytes} bytes")
        if not decoder.eof:
            raise ValueError("the zstd data is cut short")
        rest = decoder.unused_data
    return bytes(out)


def zstd_writer(target: BinaryIO) -> BinaryIO:
    """Return a file that packs what is written to it into ``target``, as one zstd frame.

    To be closed; ``target`` stays open then.
    """
    return cast("BinaryIO", zstd.ZstdFile(target, "wb", level=ZSTD_LEVEL_STORE))
