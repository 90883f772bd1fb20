"""One batch into the next free part: the step that makes results exist, each item once.

A part is created by one conditional PUT to the number after the last part that this writer has
read or written. So whoever creates part s knows every item before it, and drops those from its
own batch: two writers, a writer that was stopped for an hour, and a lost answer all end in the
same few lines.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from common import codec
from common.errors import StoreError
from common.failpoint import declare, hit
from common.ids import new_nonce
from common.objectstore import Created
from common.parts import WRITER, codec_for
from common.parts.index import PartIndex, describe, find_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from common.objectstore import ObjectStat, ObjectStore, RunPaths
    from common.records import Completion
    from consumer.sink.recover import Ledger

log = structlog.get_logger()
_WHY = {
    Created.CONFLICT: "Another write of it was under way (409), and nothing is there.",
    Created.EXISTS: "It was there (412), and cannot be found any more.",
    Created.UNKNOWN: "Its conditional PUT was not answered, or with an error; nothing is there.",
}
declare("sink.encoded", "sink.part.put", "sink.index.put")


class UnstorableError(Exception):
    """Some completions cannot be encoded: item -> reason. Nothing was written."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(f"{len(reasons)} completions cannot be stored")
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class _Draft:
    """An encoded part that waits for its number to be its own."""

    index: PartIndex
    data: bytes


class PartWriter:
    """Writes the parts of one run. Not for use by two threads at once."""

    def __init__(
        self,
        store: ObjectStore,
        paths: RunPaths,
        ledger: Ledger,
        *,
        new_token: Callable[[], str] = new_nonce,
    ) -> None:
        self._store = store
        self._paths = paths
        self._ledger = ledger
        self._codec = codec_for(ledger.suffix)
        self._new_token = new_token
        self._draft: _Draft | None = None
        self._owed: list[PartIndex] = []  # parts whose index object is not written yet

    def write(self, completions: Sequence[Completion]) -> PartIndex | None:
        """Commit ``completions``; return the part, or None if all of them were committed before.

        After an error the same call goes on where it was: what was written is found again.

        Raises:
            StoreError: the store gave no answer that decides; nothing is known to be lost.
            VerifyError: a part that somebody else wrote is damaged, or the last part is gone.
            UnstorableError: these completions have to be taken out first.
        """
        self._ledger.check_last()
        while fresh := [one for one in completions if one.k not in self._ledger]:
            draft = self._encode(fresh)
            if self._create(draft):
                self._ledger.take(draft.index)
                self._draft = None
                self.owe(draft.index)
                self.write_indexes()
                return draft.index
            self._read_next()
        self.write_indexes()
        return None

    def owe(self, index: PartIndex) -> None:
        """Note a part whose index object is missing."""
        self._owed.append(index)

    def write_indexes(self) -> None:
        """Write the index objects that are missing. Raises StoreError."""
        while self._owed:
            index = self._owed[0]
            self._store.put(
                self._paths.index(index.part), codec.dumps(index), content_type="application/json"
            )
            hit("sink.index.put")
            self._owed.pop(0)

    def _encode(self, fresh: Sequence[Completion]) -> _Draft:
        """Return ``fresh`` as the next part; a draft that still fits is used again."""
        number, items = self._ledger.next, [one.k for one in fresh]
        old = self._draft
        if old is None or (old.index.part, old.index.items) != (number, items):
            token = self._new_token()
            try:
                data = self._codec.encode(fresh, token)
            except ValueError as error:
                raise UnstorableError(self._unstorable(fresh) or _all(fresh, error)) from error
            index = describe(number, self._ledger.suffix, data, fresh, token)
            self._draft = old = _Draft(index, data)
            hit("sink.encoded")
        return old

    def _unstorable(self, completions: Sequence[Completion]) -> dict[int, str]:
        reasons: dict[int, str] = {}
        for one in completions:
            try:
                self._codec.encode([one], "")
            except ValueError as error:
                reasons[one.k] = str(error)
        return reasons

    def _create(self, draft: _Draft) -> bool:
        """Return whether the part is ours; False if its number is somebody else's.

        Raises:
            StoreError: neither is known yet.
        """
        key = self._paths.part(draft.index.part, draft.index.suffix)
        outcome = self._store.create(
            key,
            draft.data,
            content_type=self._codec.content_type,
            metadata={WRITER: draft.index.token},
        )
        hit("sink.part.put")
        if outcome is Created.CREATED:
            return True
        found = self._store.stat(key)
        if found is not None:
            return self._token_of(found) == draft.index.token
        raise StoreError(
            f"{self._store.url}/{key} could not be written.",
            why=_WHY[outcome],
            fix="It is tried again until it is clear; nothing is lost.",
        )

    def _token_of(self, found: ObjectStat) -> str:
        """Return whose part it is, from its body if a copy has lost the metadata."""
        token = found.metadata.get(WRITER)
        if token is None:
            with suppress(ValueError):  # who reads the part next will find it damaged, and say so
                token = self._codec.token_of(self._store.get(found.key))
        return token or ""

    def _read_next(self) -> None:
        """Enter the part that somebody else put where ours would have gone."""
        number = self._ledger.next
        found = find_part(self._store, self._paths, number, self._ledger.suffix)
        if found is None:
            key = self._paths.part(number, self._ledger.suffix)
            raise StoreError(f"{self._store.url}/{key} was there, and is gone.")
        self._ledger.take(found.index)
        if not found.indexed:
            self.owe(found.index)
        log.info("sink.part_of_another", run=self._paths.run, part=number, rows=found.index.rows)


def _all(completions: Sequence[Completion], error: ValueError) -> dict[int, str]:
    """Return a reason for each: only together do they not fit, which no known format has."""
    return {one.k: str(error) for one in completions}
