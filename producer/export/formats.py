"""The formats that an export can be written in, by the name of ``--to``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from producer.export import openai, specforge, speculators

if TYPE_CHECKING:
    from common.records import Completion
    from producer.export.rows import Options


class RowsOf(Protocol):
    """What a format makes of a completion: rows, which are lines of the output."""

    def __call__(self, completion: Completion, options: Options) -> list[dict[str, Any]]:
        """Return the rows; raises UnfitError if there can be none."""


@dataclass(frozen=True, slots=True)
class Format:
    """One format."""

    name: str
    rows: RowsOf
    reasoning: bool  # whether thoughts are told unless asked otherwise
    plain_only: bool = False  # its own readers do not unpack files
    errors: bool = False  # what is not in it has a line in a second file


FORMATS = {
    one.name: one
    for one in (
        Format("specforge", specforge.rows, reasoning=True, plain_only=True),
        Format("speculators", speculators.rows, reasoning=True, plain_only=True),
        Format("messages", openai.message_rows, reasoning=False),
        Format("openai-batch", openai.batch_rows, reasoning=True, errors=True),
    )
}
