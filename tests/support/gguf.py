"""A GGUF file with another word for how its tokenizer splits text, and all else as it was."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from common import gguf

if TYPE_CHECKING:
    from pathlib import Path

_NAME = b"tokenizer.ggml.pre"
_ALIGNMENT = 32


def with_pre(source: Path, pre: str, target: Path) -> Path:
    """Write ``target``; the tensors behind the head keep their alignment."""
    data = source.read_bytes()
    start = data.index(_NAME) + len(_NAME) + 4  # behind the value's type
    (size,) = struct.unpack_from("<Q", data, start)
    end = _head_end(source)
    word = struct.pack("<Q", len(pre)) + pre.encode()
    head = data[:start] + word + data[start + 8 + size : end]
    head += bytes(-len(head) % _ALIGNMENT)
    target.write_bytes(head + data[end + -end % _ALIGNMENT :])
    return target


def _head_end(source: Path) -> int:
    """Return where the descriptions of the tensors end."""
    with source.open("rb") as file:
        tensors, pairs = struct.unpack_from("<QQ", file.read(24), 8)
        for _ in range(pairs):
            gguf._string(file)
            gguf._value(file, gguf._scalar(file, 4))
        for _ in range(tensors):
            gguf._string(file)
            file.seek(8 * gguf._scalar(file, 4) + 12, 1)
        return file.tell()
