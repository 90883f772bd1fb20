"""The committed completions of some runs as one list of pieces, in an order that a seed decides.

Made once, in the process that starts the training, and handed to its workers: it is small, and
what is committed afterwards is not in it.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from common.build import NewerVersionError, newer
from common.errors import UsageError, VerifyError
from common.family import Family
from common.losses import Ends
from common.objectstore import RunPaths
from common.parts import codec_for
from common.parts.bits import Bits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from common.epoch import Ranges
    from common.family import FamilyPart
    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.records import Completion


@dataclass(frozen=True, slots=True)
class Piece:
    """What counts of one part. ``counted`` is a bitmap of its rows; "" if all do."""

    run: RunName
    number: int
    key: str
    suffix: str
    rows: int  # of the part
    size: int  # of them count
    counted: bytes = b""

    def completions(self, data: bytes, low: int, high: int) -> Iterator[Completion]:
        """Yield those from the ``low``-th that counts to before the ``high``-th.

        Raises:
            StoreError: a newer sink wrote the part.
            VerifyError: it is damaged.
        """
        counted = Bits(self.rows, self.counted) if self.counted else None
        passed = 0
        try:
            for row, completion in enumerate(codec_for(self.suffix).decode(data)):
                if counted is not None and row not in counted:
                    continue
                if passed >= high:
                    return
                if passed >= low:
                    yield completion
                passed += 1
        except NewerVersionError as error:
            raise newer(self.key, error) from error
        except ValueError as error:
            raise VerifyError(
                f"{self.key} is damaged.", why=str(error), fix=f"gen-producer verify {self.run}"
            ) from error


@dataclass(frozen=True, slots=True)
class Corpus:
    """Pieces of all runs, parts in the order in which they were committed."""

    pieces: tuple[Piece, ...]
    unfinished: frozenset[RunName]  # runs to which something may be added
    digest: str  # of which completions these are

    @property
    def size(self) -> int:
        """How many completions it holds, whatever their verdict."""
        return sum(piece.size for piece in self.pieces)

    def first(self, parts: dict[str, int]) -> Corpus:
        """Return it as it was when these runs had so many parts; of others all parts stay."""
        kept = (one for one in self.pieces if one.number < parts.get(one.run, one.number + 1))
        return _corpus(tuple(kept), self.unfinished)

    def parts(self) -> dict[str, int]:
        """Return how many parts each run has."""
        return {piece.run: piece.number + 1 for piece in self.pieces}

    def ordered(self, seed: int | None, epoch: int) -> Order:
        """Return the order of an epoch; None: as committed."""
        pieces = list(self.pieces)
        if seed is not None:
            random.Random(f"{seed}/{epoch}").shuffle(pieces)  # the same on every machine
        return Order(tuple(pieces))


@dataclass(frozen=True, slots=True)
class Order:
    """Pieces one after another; a position counts completions from the first one's first."""

    pieces: tuple[Piece, ...]

    def reads(self, ranges: Ranges) -> Iterator[tuple[Piece, int, int, int]]:
        """Yield what to read: a piece, the position where it begins, and from where to where."""
        ends = list(accumulate(piece.size for piece in self.pieces))
        for start, end in ranges:
            n = bisect_right(ends, start)
            while n < len(ends) and ends[n] - self.pieces[n].size < end:
                first = ends[n] - self.pieces[n].size
                if self.pieces[n].size:
                    yield self.pieces[n], first, max(start, first), min(end, ends[n])
                n += 1


def read_corpus(store: ObjectStore, runs: Sequence[RunName]) -> Corpus:
    """Return what is committed of runs and of their child runs now.

    Raises:
        ObjectMissingError: there is no such run.
        UsageError: a run is named twice, or beside a run that it is a child of.
        StoreError, VerifyError: storage gave no answer, or something in it is damaged or gone.
    """
    pieces: list[Piece] = []
    seen: set[RunName] = set()
    unfinished: set[RunName] = set()
    for run in runs:
        family = Family.of(store, run)
        members = [run, *(child.run for child in family.children)]
        for member in members:
            if member in seen:
                raise UsageError(
                    f"The completions of run {member} would be there twice.",
                    why="A run stands for its child runs, too.",
                    fix="Name each run once, and no child beside its parent.",
                )
            seen.add(member)
            if store.stat(RunPaths(member).success) is None:
                unfinished.add(member)
        ends = Ends(store, members)
        there = [_piece(part) for part in family.parts()]
        _refuse_less(ends, run, sum(one.rows for one in there if one.run == run))
        for child in members[1:]:  # of them only what counts was read
            _refuse_less(ends, child)
        pieces += there
    return _corpus(tuple(pieces), frozenset(unfinished))


def _refuse_less(ends: Ends, run: RunName, found: int | None = None) -> None:
    """Refuse to train on a part of what a finished run held as if it were the whole."""
    if lost := ends.lost(run, found):
        raise VerifyError(
            f"{lost:,} completions of run {run} are gone.",
            why="Its _SUCCESS counts them, and no part holds them: its last parts were deleted.",
            fix=f"gen-producer load --run {run}    has them made again",
        )


def _piece(part: FamilyPart) -> Piece:
    rows, size = len(part.items), sum(item >= 0 for item in part.items)
    counted = b""
    if size < rows:
        bits = Bits(rows)
        bits.add_all(row for row, item in enumerate(part.items) if item >= 0)
        counted = bits.to_bytes()
    return Piece(part.run, part.number, part.key, part.suffix, rows, size, counted)


def _corpus(pieces: tuple[Piece, ...], unfinished: frozenset[RunName]) -> Corpus:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(f"{piece.key}\0{piece.rows}\0".encode() + piece.counted + b"\0")
    return Corpus(pieces, unfinished, digest.hexdigest())
