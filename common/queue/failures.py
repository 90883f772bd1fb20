"""Reasons of failures, as RQ keeps and shows them: on rq-dashboard's page of a job, for one."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.keys import RunKeys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import redis.asyncio

    from common.ids import Item, RunName

TEXT_BYTES = 2000
# What a record may take in Redis, so that 10,000 failures stay under 20 MB whatever the texts are.
RECORD_BYTES = 1200


@dataclass(frozen=True, slots=True)
class FailureInfo:
    """A dead item, and why."""

    item: Item
    verdict: str
    text: str
    worker: str
    at: float  # unix s


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


async def read_reasons(
    redis: redis.asyncio.Redis, run: RunName, dead: Mapping[Item, str]
) -> list[FailureInfo]:
    """Return why items failed, given with their classes; one round trip for all of them.

    Raises:
        RedisError, OSError: the server did not answer.
    """
    prefix = RunKeys(run).result_prefix
    pipeline: Any = redis.pipeline(transaction=False)
    for item in dead:
        pipeline.xrevrange(f"{prefix}{item}", count=1)
    records = await pipeline.execute()
    return [
        _failure(item, verdict, record)
        for (item, verdict), record in zip(dead.items(), records, strict=True)
    ]


def _failure(item: Item, verdict: str, record: Sequence[Any]) -> FailureInfo:
    if not record:  # it was requeued meanwhile, or has expired
        return FailureInfo(item, verdict, "", "", 0.0)
    entry_id, fields = record[0]
    return FailureInfo(
        item,
        verdict,
        decode_reason(fields.get(b"exc_string", b"")),
        fields.get(b"worker_name", b"").decode(),
        int(entry_id.split(b"-")[0]) / 1000,
    )
