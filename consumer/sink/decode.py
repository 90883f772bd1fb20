"""Results as the stream holds them, back into completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import codec
from common.build import NewerVersionError
from common.parts.schema import from_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.records import Completion, StreamEntry

RESULT_LIMIT_BYTES = 32 * 2**20  # of one completion as JSON; a larger one is dead-lettered

Decoded = tuple["Completion", int] | NewerVersionError | str


def decode(entries: Sequence[StreamEntry]) -> list[Decoded]:
    """Return each result with its size as JSON, or why it cannot be stored."""
    return [_decode_one(entry) for entry in entries]


def _decode_one(entry: StreamEntry) -> Decoded:
    try:
        text = codec.decompress(entry.payload, limit_bytes=RESULT_LIMIT_BYTES)
        completion = from_json(text)
    except NewerVersionError as error:
        return error
    except ValueError as error:
        return f"not a completion: {error}"
    if completion.k != entry.item:
        return f"it is of item {completion.k}"
    return completion, len(text)
