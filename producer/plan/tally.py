"""What a plan counts, in memory that does not grow with the data set: lengths, doubles, reasons."""

from __future__ import annotations

import heapq
import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Self

from producer.sources.records import Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLES = 3
_EXACT_BITS = 6  # counts below 64 have a bucket each; above, 32 buckets share a doubling (3 %)
_BUCKETS = 64
_WORD_BYTES = 8
_LINE_BITS = 44
_MOST_REASONS = 50
_OTHER = "other reasons"


class Bar(NamedTuple):
    """How many values lie in ``low`` to ``high``, both counted in."""

    low: int
    high: int
    rows: int


class Histogram:
    """Counts of values from 0 up, exact to 3 %; some 2,000 buckets at the very most."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.total = 0
        self.least = 0
        self.most = 0

    def add(self, value: int) -> None:
        """Take one more value."""
        shift = max(0, value.bit_length() - _EXACT_BITS)
        self._buckets[value >> shift << shift] += 1
        self.least = min(self.least, value) if self.count else value
        self.most = max(self.most, value)
        self.count += 1
        self.total += value

    def quantile(self, share: float) -> int:
        """Return the value that ``share`` of all do not exceed, to 3 %; 0 if there are none."""
        left = share * self.count
        for low, count in sorted(self._buckets.items()):
            left -= count
            if left <= 0:
                shift = max(0, low.bit_length() - _EXACT_BITS)
                return min(self.most, low + (1 << shift) - 1)
        return self.most

    def bars(self) -> list[Bar]:
        """Return the values by doublings, from the least to the most that occurs, gaps included."""
        counts: Counter[int] = Counter()
        for low, count in self._buckets.items():
            counts[low.bit_length()] += count
        if not counts:
            return []
        return [
            Bar((1 << bits) >> 1, (1 << bits) - 1, counts[bits])
            for bits in range(min(counts), max(counts) + 1)
        ]


class Example(NamedTuple):
    """A row that repeats something, and the first that had it."""

    again: Place
    first: Place


@dataclass(slots=True)
class Doubles:
    """How many rows repeat what an earlier row has, and the first of them."""

    same_id_same_prompt: int = 0
    same_id_other_prompt: int = 0
    same_prompt: int = 0
    other_prompt_examples: list[Example] = field(default_factory=list)
    same_prompt_examples: list[Example] = field(default_factory=list)


class _Entry(NamedTuple):
    key: int
    value: int
    place: int


class _Sorted:
    """Entries of three words (24 bytes) on disk, by key, and looked at one 64th at a time."""

    def __init__(self, folder: Path, name: str) -> None:
        self._paths = [folder / f"{name}-{number:02}" for number in range(_BUCKETS)]
        self._files = [path.open("wb") for path in self._paths]

    def add(self, key: int, value: int, place: int) -> None:
        self._files[key % _BUCKETS].write(array("Q", (key, value, place)).tobytes())

    def repeats(self) -> Iterator[tuple[_Entry, _Entry]]:
        """Yield each entry whose key an earlier one has, and the first of its key."""
        for file, path in zip(self._files, self._paths, strict=True):
            file.flush()
            words = array("Q")
            words.frombytes(path.read_bytes())
            firsts: dict[int, int] = {}
            for at in range(0, len(words), 3):
                first = firsts.setdefault(words[at], at)
                if first != at:
                    yield _Entry(*words[at : at + 3]), _Entry(*words[first : first + 3])

    def close(self) -> None:
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            path.unlink(missing_ok=True)


class Repeats:
    """Finds rows that repeat an id or a prompt: 24 to 48 bytes a row on disk, a 64th in memory.

    Digests of 64 bits stand for ids and prompts: among 30 million rows the chance that two
    different ones are taken for equal is 0.003 %.
    """

    def __init__(self, folder: Path) -> None:
        self._ids = _Sorted(folder, "plan-ids")
        self._prompts = _Sorted(folder, "plan-prompts")
        self._files: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ids.close()
        self._prompts.close()

    def add(self, row_id: str | None, prompt: bytes, place: Place) -> None:
        """Take one more row."""
        number = self._files.setdefault(place.file, len(self._files))
        packed = number << _LINE_BITS | place.line
        digest = _digest(prompt)
        self._prompts.add(digest, 0, packed)
        if row_id is not None:
            self._ids.add(_digest(row_id.encode()), digest, packed)

    def found(self) -> Doubles:
        """Return what was repeated so far."""
        doubles = Doubles()
        other: list[tuple[int, int]] = []
        for again, first in self._ids.repeats():
            if again.value == first.value:
                doubles.same_id_same_prompt += 1
            else:
                doubles.same_id_other_prompt += 1
                _keep(other, again, first)
        same: list[tuple[int, int]] = []
        for again, first in self._prompts.repeats():
            doubles.same_prompt += 1
            _keep(same, again, first)
        doubles.other_prompt_examples = self._examples(other)
        doubles.same_prompt_examples = self._examples(same)
        return doubles

    def _examples(self, kept: list[tuple[int, int]]) -> list[Example]:
        return [
            Example(self._place(-again), self._place(first))
            for again, first in sorted(kept, reverse=True)
        ]

    def _place(self, packed: int) -> Place:
        names = list(self._files)
        return Place(names[packed >> _LINE_BITS], packed & ((1 << _LINE_BITS) - 1))


def _keep(heap: list[tuple[int, int]], again: _Entry, first: _Entry) -> None:
    """Keep the few that come first in the data set."""
    heapq.heappush(heap, (-again.place, first.place))
    if len(heap) > EXAMPLES:
        heapq.heappop(heap)


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=_WORD_BYTES).digest())


@dataclass(slots=True)
class Reason:
    """Why rows cannot be used: in how many cases, and the first of them."""

    text: str
    first: Place
    count: int = 0


class Reasons:
    """Counts reasons; those that differ by numbers only are one."""

    def __init__(self) -> None:
        self._found: dict[str, Reason] = {}
        self.total = 0

    def add(self, place: Place, reason: str) -> None:
        """Take one more case."""
        kind = re.sub(r"\d+", "N", reason)
        if kind not in self._found and len(self._found) >= _MOST_REASONS:
            kind = _OTHER
        known = self._found.setdefault(kind, Reason(_OTHER if kind == _OTHER else reason, place))
        known.count += 1
        self.total += 1

    def ordered(self) -> list[Reason]:
        """Return the reasons, the commonest first."""
        return sorted(self._found.values(), key=lambda one: -one.count)
