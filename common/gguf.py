"""The metadata at the head of a GGUF file: what the model is, its vocabulary, its chat template.

The layout is that of GGUF 2 and 3, as the ggml project documents it: a magic word, counts, then
typed key-value pairs, little-endian. Tensors come behind them and are never touched.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {
    number: struct.Struct(f"<{form}")
    for number, form in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_STRING, _ARRAY = 8, 9
_MOST_PAIRS = 65_536
_MOST_ITEMS = 1 << 24  # of an array; the largest vocabularies have some 300,000 tokens
_MOST_BYTES = 1 << 26  # of a string


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a GGUF file; arrays are lists.

    Raises:
        ValueError: it is no GGUF file of a known version, or it is cut short or damaged.
        OSError: it cannot be read.
    """
    return dict(_pairs(path))


def gguf_context(path: Path) -> int | None:
    """Return how many tokens the model was made for, or None; reads no more than it must.

    Raises:
        ValueError, OSError: as :func:`read_metadata`.
    """
    for name, value in _pairs(path):
        if name.endswith(".context_length"):
            return int(value)
    return None


def _pairs(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        head = file.read(24)
        if len(head) < 24 or head[:4] != MAGIC:
            raise ValueError("it is not a GGUF file")
        version, _tensors, pairs = struct.unpack("<IQQ", head[4:])
        if version not in _VERSIONS or pairs > _MOST_PAIRS:
            raise ValueError(f"GGUF version {version} is not known")
        for _ in range(pairs):
            name = _string(file)
            yield name, _value(file, _scalar(file, 4))


def _value(file: BinaryIO, kind: int, *, nested: bool = False) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _scalar(file, kind)
    inner, size = _scalar(file, 4), _scalar(file, 10)
    if nested or size > _MOST_ITEMS:
        raise ValueError("a GGUF array is larger than any real one")
    packed = _SCALARS.get(inner)
    if packed is None:
        return [_value(file, inner, nested=True) for _ in range(size)]
    return [item for (item,) in packed.iter_unpack(_read(file, size * packed.size))]


def _scalar(file: BinaryIO, kind: int) -> Any:
    packed = _SCALARS.get(kind)
    if packed is None:
        raise ValueError(f"a GGUF value has the unknown type {kind}")
    return packed.unpack(_read(file, packed.size))[0]


def _string(file: BinaryIO) -> str:
    size = _scalar(file, 10)
    if size > _MOST_BYTES:
        raise ValueError("a GGUF string is larger than any real one")
    return _read(file, size).decode(errors="replace")


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise ValueError("the GGUF file is cut short")
    return data
