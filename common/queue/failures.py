"""Reasons of failures, as RQ keeps and shows them: on rq-dashboard's page of a job, for one."""

from __future__ import annotations

import base64
import zlib

TEXT_BYTES = 2000
# What a record may take in Redis, so that 10,000 failures stay under 20 MB whatever the texts are.
RECORD_BYTES = 1200


def encode_reason(text: str) -> bytes:
    """Return a text as RQ's result records hold it, cut to 2 kB, or shorter where it must be."""
    data = text.encode("utf-8", "replace")[:TEXT_BYTES]
    while True:
        clean = data.decode("utf-8", "ignore").encode()
        record = base64.b64encode(zlib.compress(clean, 9))
        if len(record) <= RECORD_BYTES:
            return record
        data = data[: len(data) * RECORD_BYTES // len(record) - 1]


def decode_reason(record: bytes) -> str:
    """Return the text of a record, of ours or of RQ's own; what cannot be read is said so."""
    try:
        return zlib.decompress(base64.b64decode(record)).decode("utf-8", "replace")
    except (ValueError, zlib.error):
        return "(unreadable)"
