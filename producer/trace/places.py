"""Which part of a run holds an item, found by the parts' small index objects; and what it says.

Parts are written in the order in which items end, which is nearly that of their numbers. So the
first guess is by number, the next by what the index read last holds, and then one looks outwards
from there, several indexes at a time. Read is at most one index object a part, and of parts only
the one that holds the item.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from common import codec
from common.errors import VerifyError
from common.objectstore import RunPaths
from common.parts import codec_for
from common.parts.chain import chain_end, read_format
from common.parts.index import find_part, read_index
from common.ranges import Ranges, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from common.ids import Item
    from common.objectstore import ObjectStore
    from common.records import RunManifest

GUESSES = 8
_PARALLEL = 8
_AHEAD = 16  # indexes that are asked for at a time
_FIGURES = (
    *("k", "row_id", "verdict", "finish_reason", "usage", "seed", "attempt", "worker", "started"),
    *("seconds", "model", "engine"),
)
_TEXTS = ("messages", "reasoning_content", "content", "turns", "sampling", "metadata")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item's completion is stored."""

    part: int
    key: str
    suffix: str
    position: int  # in the part, from 0


class Finder:
    """Finds items of one run. ``asked`` is told (indexes read, parts there are) now and then."""

    def __init__(
        self, store: ObjectStore, manifest: RunManifest, asked: Callable[[int, int], None]
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._paths = RunPaths(manifest.run)
        self._told = asked
        self._suffix = ""
        self._end = 0
        self._seen: set[int] = set()

    def find(self, item: Item) -> Place | None:
        """Return where an item is, or None if it is in no part.

        Raises:
            StoreError: the store could not be asked.
            VerifyError: a part without an index is damaged.
        """
        self._suffix = read_format(self._store, self._paths) or ""
        if not self._suffix:
            return None
        self._end = chain_end(self._store, self._paths, self._suffix)
        self._seen.clear()
        guess = item * self._end // max(1, self._manifest.items)
        for _ in range(GUESSES):
            guess = min(max(guess, 0), self._end - 1)
            if guess < 0 or guess in self._seen:
                break
            items = self._items(guess)
            if item in items:
                return self._place(guess, items.index(item))
            guess += self._step(item, items)
        return self._look_around(item, guess)

    def _step(self, item: Item, items: list[int]) -> int:
        """Return how many parts further an item may be, by the numbers of those in this one."""
        if not items:
            return 1
        away = item - sorted(items)[len(items) // 2]
        each = max(1, self._manifest.items // max(1, self._end))
        return away // each or (1 if away > 0 else -1)

    def _look_around(self, item: Item, start: int) -> Place | None:
        numbers = [n for n in _outwards(start, self._end) if n not in self._seen]
        with ThreadPoolExecutor(_PARALLEL) as pool:
            for at in range(0, len(numbers), _AHEAD):
                some = numbers[at : at + _AHEAD]
                for number, items in zip(some, pool.map(self._items, some), strict=True):
                    if item in items:
                        return self._place(number, items.index(item))
                self._told(len(self._seen), self._end)
        return None

    def _items(self, number: int) -> list[int]:
        self._seen.add(number)
        index = read_index(self._store, self._paths, number)
        if index is not None:
            return index.items
        found = find_part(self._store, self._paths, number, self._suffix)
        return found.index.items if found else []

    def _place(self, number: int, position: int) -> Place:
        return Place(number, self._paths.part(number, self._suffix), self._suffix, position)


def _outwards(start: int, end: int) -> Iterator[int]:
    """Yield the numbers below ``end``, those near ``start`` first."""
    start = min(max(start, 0), max(0, end - 1))
    for away in range(end):
        if start + away < end:
            yield start + away
        if away and start - away >= 0:
            yield start - away


def read_completion(
    store: ObjectStore, place: Place, item: Item, *, texts: bool
) -> dict[str, Any] | None:
    """Return an item's completion as its part has it: the figures, or the texts as well.

    None where the part is not what its index says, or is gone.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: the part is damaged.
    """
    stat = store.stat(place.key)
    if stat is None:
        return None
    try:
        source = cast("BinaryIO", Ranges(store, stat))
        columns = codec_for(place.suffix).open(source)
        rows = columns.rows(_FIGURES + (_TEXTS if texts else ()))
        return next((row for row in rows if row["k"] == item), None)
    except ValueError as error:
        run = place.key.partition("/")[0]
        raise VerifyError(
            f"{store.url}/{place.key} is damaged.", why=str(error), fix=f"gen-producer verify {run}"
        ) from error


def find_letter(store: ObjectStore, manifest: RunManifest, item: Item) -> dict[str, Any] | None:
    """Return the dead letter of an item in failed.jsonl, which is read line by line; or None.

    Raises:
        StoreError: the store could not be asked.
    """
    found = store.stat(RunPaths(manifest.run).failed)
    if found is None:
        return None
    marks = (b'"k":%d,' % item, b'"k": %d,' % item)
    for line in lines_of(store, found):
        if any(mark in line[:64] for mark in marks):
            try:
                letter = codec.loads(line)
                if letter["k"] == item:
                    return dict(letter)
            except (ValueError, KeyError, TypeError):
                continue
    return None
