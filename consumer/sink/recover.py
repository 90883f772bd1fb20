"""The ledger: which items of a run are committed, as this sink has read or written itself.

Built only from the gapless chain of parts, never from what Redis says. A copy in the state folder
saves reading old parts again; a copy that is damaged, foreign, or does not fit the part it ends
with is thrown away, and the ledger is read from storage.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from common import codec
from common.build import build
from common.errors import UsageError, VerifyError
from common.failpoint import declare, hit
from common.parts import WRITER
from common.parts.bits import Bits
from common.parts.chain import check_end, refuse_foreign, walk
from common.parts.owner import Owner
from common.private import private_folder, write_private

if TYPE_CHECKING:
    from pathlib import Path

    from common.objectstore import ObjectStore, RunPaths
    from common.parts.index import FoundPart, PartIndex
    from common.records import RunManifest

log = structlog.get_logger()
LEDGER_VERSION = 1
declare("sink.ledger.saved")


@dataclass(frozen=True, slots=True)
class _Subject:
    """Whose ledger it is: a copy of another run, store or data set is of no use."""

    store: str
    run: str
    fingerprint: str
    items: int
    suffix: str


@dataclass(frozen=True, slots=True)
class _Header:
    """First line of a ledger file; the bitmap follows."""

    subject: _Subject
    next: int
    token: str  # of the last part that the bitmap knows
    sha256: str  # of the bitmap
    version: int = LEDGER_VERSION


class Ledger:
    """The committed items of one run, up to part ``next``. Not for use by two threads at once."""

    def __init__(
        self, store: ObjectStore, paths: RunPaths, manifest: RunManifest, suffix: str
    ) -> None:
        self.suffix = suffix
        self.next = 0
        self._store = store
        self._paths = paths
        self._subject = _Subject(store.url, paths.run, manifest.fingerprint, manifest.items, suffix)
        self._owner = Owner.of(manifest)
        self._bits = Bits(manifest.items)
        self._token = ""

    def __contains__(self, item: int) -> bool:
        return item in self._bits

    def __len__(self) -> int:
        return len(self._bits)

    def copy_of_bits(self) -> Bits:
        """Return the committed items as a set of the caller's own."""
        return Bits(self._bits.size, self._bits.to_bytes())

    def take(self, index: PartIndex) -> None:
        """Enter the next part of the chain.

        Raises:
            VerifyError: it is not the next one, or another run's, or holds an item that the run
                does not have.
        """
        if index.part != self.next:
            raise VerifyError(f"Part {index.part} of {self._paths.run} is not part {self.next}.")
        refuse_foreign(self._store, self._paths, index, self._owner)
        try:
            self._bits.add_all(index.items)
        except IndexError as error:
            key = self._paths.part(index.part, self.suffix)
            raise VerifyError(
                f"{self._store.url}/{key} holds item {error}, which the run does not have.",
                fix=f"gen-producer verify {self._paths.run}",
            ) from error
        self.next += 1
        self._token = index.token

    def catch_up(self) -> list[FoundPart]:
        """Read the parts that others wrote, to the end of the chain; return them.

        Raises:
            StoreError: the store could not be asked.
            VerifyError: a part is damaged, another run's, or was deleted.
        """
        news = []
        for found in walk(self._store, self._paths, self.suffix, start=self.next):
            self.take(found.index)
            news.append(found)
        check_end(self._store, self._paths, self.suffix, self.next)
        return news

    def check_last(self) -> None:
        """Check that storage still ends with the part that it ended with, before it goes on there.

        Who writes behind a part that was deleted makes a gap, which nobody reads over; and what it
        held would be taken for committed.

        Raises:
            StoreError: the store could not be asked.
            VerifyError: the part is gone, or there is another one in its place.
        """
        if not self.next:
            return
        key = self._paths.part(self.next - 1, self.suffix)
        # The list first: a store that refuses says why to it, which to a look-up it cannot. And
        # both have to agree that a part is gone: an answer may be older than the part.
        there = any(found.key == key for found in self._store.list(key))
        stat = self._store.stat(key)
        if stat is not None:
            there = stat.metadata.get(WRITER, self._token) == self._token
        if there:
            return
        raise VerifyError(
            f"{self._store.url}/{key} is {'gone' if stat is None else 'another part by now'}.",
            why="This sink wrote or read it before: somebody deleted it since.",
            fix=f"gen-producer load --run {self._paths.run}    makes again what no part holds.",
        )

    def save(self, folder: Path) -> None:
        """Keep a copy. It is only a cache: what keeps it from that is logged, not raised."""
        bitmap = self._bits.to_bytes()
        header = _Header(
            subject=self._subject,
            next=self.next,
            token=self._token,
            sha256=hashlib.sha256(bitmap).hexdigest(),
        )
        try:
            target = self._file(private_folder(folder))
            write_private(target, codec.dumps(header) + b"\n" + bitmap)
        except (OSError, UsageError) as error:
            log.warning("sink.ledger_not_saved", folder=str(folder), error=str(error))
        hit("sink.ledger.saved")

    def load(self, folder: Path) -> bool:
        """Take over a copy that fits what storage holds; return whether there was one.

        Raises:
            StoreError: the store could not be asked.
        """
        try:
            line, _, bitmap = self._file(folder).read_bytes().partition(b"\n")
            header = build(_Header, codec.loads(line))
            bits = Bits(self._subject.items, bitmap)
        except (OSError, ValueError):
            return False
        ours = header.subject == self._subject
        whole = header.sha256 == hashlib.sha256(bitmap).hexdigest()
        if not ours or not whole or not self._ends_with(header):
            log.warning("sink.ledger_rebuilt", run=self._paths.run)
            return False
        self._bits, self.next, self._token = bits, header.next, header.token
        return True

    def _ends_with(self, header: _Header) -> bool:
        """Return whether storage has the very part that the copy ends with."""
        if header.version != LEDGER_VERSION or header.next < 1:
            return False
        stat = self._store.stat(self._paths.part(header.next - 1, self.suffix))
        return stat is not None and stat.metadata.get(WRITER) == header.token

    def _file(self, folder: Path) -> Path:
        place = hashlib.sha256(self._store.url.encode()).hexdigest()[:8]
        return folder / f"{self._paths.run}.{place}.ledger"
