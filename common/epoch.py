"""Which completions of an epoch are whose, and which are left: arithmetic of positions. Pure.

A position is the place of a completion in the order of an epoch. What is left of it is a sorted
list of ranges that do not touch; ranks and workers get contiguous cuts of it that differ in size by
one at most. So a state fits in a line, whatever the data set's size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Ranges = list[tuple[int, int]]  # [start, end)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an example lies: the ``given``-th of the ``of`` of the completion at ``at``.

    Between ``since`` and ``at`` nothing is to be given.
    """

    since: int
    at: int
    given: int
    of: int


@dataclass(slots=True)
class Progress:
    """What is left to be given. ``begun``: how many examples of a completion were given already."""

    left: Ranges
    begun: dict[int, int] = field(default_factory=dict)

    def give(self, place: Place) -> None:
        """Take an example out. Those of one reader come in order; readers may take turns."""
        whole = place.given == place.of
        self.left = without(self.left, place.since, place.at + whole)
        if whole:
            self.begun.pop(place.at, None)
        else:
            self.begun[place.at] = place.given

    def share(self, index: int, of: int) -> Progress:
        """Return the ``index``-th of ``of`` equal shares."""
        mine = cut(self.left, index, of)
        return Progress(mine, {at: n for at, n in self.begun.items() if holds(mine, at)})


def merged(shares: Iterable[Progress]) -> Progress:
    """Return what is left in shares of one whole, together."""
    left: Ranges = []
    begun: dict[int, int] = {}
    for share in shares:
        left += share.left
        begun |= share.begun
    return Progress(sorted(left), begun)


def size(ranges: Ranges) -> int:
    """Return how many positions there are in ranges."""
    return sum(end - start for start, end in ranges)


def cut(ranges: Ranges, index: int, of: int) -> Ranges:
    """Return the ``index``-th of ``of`` contiguous cuts; all cuts together are the whole."""
    total = size(ranges)
    first, last = total * index // of, total * (index + 1) // of
    mine: Ranges = []
    passed = 0
    for start, end in ranges:
        low, high = max(start, start + first - passed), min(end, start + last - passed)
        if low < high:
            mine.append((low, high))
        passed += end - start
    return mine


def without(ranges: Ranges, start: int, end: int) -> Ranges:
    """Return ranges without the positions from ``start`` to before ``end``."""
    kept: Ranges = []
    for low, high in ranges:
        kept += [(a, b) for a, b in ((low, min(high, start)), (max(low, end), high)) if a < b]
    return kept if start < end else ranges


def holds(ranges: Ranges, position: int) -> bool:
    """Return whether a position is in ranges."""
    return any(start <= position < end for start, end in ranges)


def to_json(progress: Progress) -> dict[str, object]:
    """Return a progress as a state keeps it."""
    return {
        "left": [list(pair) for pair in progress.left],
        "begun": {str(at): given for at, given in progress.begun.items()},
    }


def from_json(state: Mapping[str, object]) -> Progress:
    """Return the progress in a state; raises ValueError if it is none."""
    left, begun = state.get("left"), state.get("begun")
    if not isinstance(left, list) or not isinstance(begun, dict):
        raise ValueError("no progress in it")  # noqa: TRY004 - for the caller it is a wrong value
    return Progress([(int(a), int(b)) for a, b in left], {int(k): int(n) for k, n in begun.items()})
