"""When a batch of results is full. Pure: no I/O, the clock is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.records import Completion, StreamEntry


@dataclass(frozen=True, slots=True)
class Bounds:
    """A batch is sealed at whichever comes first."""

    rows: int = 500
    bytes: int = 64 * 2**20  # of the completions as JSON, before compression
    seconds: float = 60.0  # since its first result came


@dataclass(slots=True)
class Batch:
    """Results in hand: every entry will be acknowledged, every completion stored."""

    entries: dict[str, StreamEntry] = field(default_factory=dict)  # by entry id
    completions: dict[int, Completion] = field(default_factory=dict)  # by item; first one wins

    def drop(self, item: int) -> list[StreamEntry]:
        """Take an item out, and return the entries that brought it."""
        self.completions.pop(item, None)
        gone = [entry for entry in self.entries.values() if entry.item == item]
        for entry in gone:
            del self.entries[entry.entry_id]
        return gone


class Batcher:
    """Collects results until a bound is reached."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self._bounds = bounds
        self._clock = clock
        self._batch = Batch()
        self._bytes = 0
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._batch.entries)

    def holds(self, entry: StreamEntry) -> bool:
        """Return whether the entry is in hand already, as after a claim of one's own."""
        return entry.entry_id in self._batch.entries

    def add(self, entry: StreamEntry, completion: Completion, size: int) -> None:
        """Put one result in; a second one of the same item is only acknowledged."""
        if not self._batch.entries:
            self._since = self._clock()
        self._batch.entries[entry.entry_id] = entry
        if entry.item not in self._batch.completions:
            self._batch.completions[entry.item] = completion
            self._bytes += size

    def room(self) -> int:
        """Return how many more results fit; 0 when the batch is full."""
        if self._bytes >= self._bounds.bytes:
            return 0
        return max(0, self._bounds.rows - len(self._batch.entries))

    def wait_seconds(self) -> float:
        """Return how long until the batch is due by its age; never negative."""
        if not self._batch.entries:
            return self._bounds.seconds
        return max(0.0, self._since + self._bounds.seconds - self._clock())

    def age_seconds(self) -> float:
        """Return how long ago the batch's first result came; 0 while it has none."""
        return self._clock() - self._since if self._batch.entries else 0.0

    def due(self) -> bool:
        """Return whether the batch has to be sealed now."""
        return bool(self._batch.entries) and (self.room() == 0 or self.wait_seconds() == 0)

    def seal(self) -> Batch:
        """Return the batch, and begin a new one."""
        batch, self._batch, self._bytes = self._batch, Batch(), 0
        return batch
