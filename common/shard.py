"""A prompt shard as bytes: unpacked, and held against what run.json says of it. Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from common.codec import decompress

if TYPE_CHECKING:
    from common.records import ShardInfo


def checked_lines(data: bytes, shard: ShardInfo, *, limit_bytes: int) -> list[bytes]:
    """Return a shard's lines, one a row.

    Raises:
        ValueError: it cannot be unpacked, or has not the digest or the rows that run.json names.
    """
    text = decompress(data, limit_bytes=limit_bytes)
    if hashlib.sha256(text).hexdigest() != shard.sha256:
        raise ValueError("Its digest is not the one in run.json.")
    lines = text.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    if len(lines) != shard.rows:
        raise ValueError(f"{len(lines)} rows, not {shard.rows}.")
    return lines
