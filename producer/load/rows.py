"""Rows of a data set in canonical form, one after another, and faults where there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from common.codec import dumps
from producer.sources.chat import canonical_row
from producer.sources.records import TOO_LONG, Fault, Limits, Place, Raw, RowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from common.records import Row
    from producer.load.lengths import LengthCheck

_PENDING_ROWS = 256
_DOUBTFUL_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How rows are read and what happens to those that cannot be used."""

    shape: str | None = None
    text_field: str | None = None
    skip_faults: bool = False
    limit: int | None = None
    keep_answers: bool = False  # rows keep the answers that they end with
    limits: Limits = field(default_factory=Limits)


class Found(NamedTuple):
    """One row: where it stands, and what it is; ``raw`` is None where nothing could be read."""

    place: Place
    raw: Raw | None
    row: Row | Fault


def canonical(one: Raw | Fault, options: ReadOptions) -> Found:
    """Return a row in canonical form, numbered 0, or why it cannot be used."""
    if isinstance(one, Fault):
        return Found(one.place, None, one)
    try:
        _json(one.value)  # what can be read may be nested deeper than can be written
        row = canonical_row(
            0,
            one.value,
            shape=options.shape,
            field=options.text_field,
            keep_answers=options.keep_answers,
        )
    except RowError as error:
        return Found(one.place, one, Fault(one.place, str(error)))
    return Found(one.place, one, row)


def usable(
    found: Iterable[Raw | Fault], options: ReadOptions, check: LengthCheck | None
) -> Iterator[Found]:
    """Yield all rows in order; those that are too long are faults.

    A row whose length is in doubt waits for some more of its kind, since tokenizers are fast with
    many; nothing else is read ahead.
    """
    pending: list[Found] = []
    doubtful: list[int] = []
    size = 0
    for one in found:
        this = canonical(one, options)
        if (
            check is not None
            and not isinstance(this.row, Fault)
            and (more := check.doubt(this.row))
        ):
            doubtful.append(len(pending))
            size += more
        pending.append(this)
        if not doubtful or len(pending) >= _PENDING_ROWS or size >= _DOUBTFUL_BYTES:
            yield from _judged(pending, doubtful, check)
            pending, doubtful, size = [], [], 0
    yield from _judged(pending, doubtful, check)


def _judged(
    pending: list[Found], doubtful: list[int], check: LengthCheck | None
) -> Iterator[Found]:
    if check is not None and doubtful:
        rows = [row for n in doubtful if not isinstance(row := pending[n].row, Fault)]
        for n, refusal in zip(doubtful, check.refusals(rows), strict=True):
            if refusal:
                place = pending[n].place
                pending[n] = pending[n]._replace(row=Fault(place, refusal, TOO_LONG))
    yield from pending


def line_of(row: Row, limit: int) -> bytes:
    """Return a row's line of its shard.

    Raises:
        RowError: it has no JSON form, or is too large.
    """
    line = _json(row) + b"\n"
    if len(line) > limit:
        raise RowError(f"the row is larger than {limit:,} bytes")
    return line


def _json(value: Row | dict[str, Any]) -> bytes:
    try:
        return dumps(value)
    except TypeError as error:
        reason = str(error)
        if "ecursion" in reason:
            reason = "it is nested deeper than some 250 levels"
        raise RowError(f"it cannot be written as JSON ({reason})") from error
