"""One pass over a data set: rows checked, brought into canonical form, packed into shards on disk.

Only when the whole data set was read is it known what it is (its fingerprint), so nothing leaves
this machine before. Memory does not grow with the number of rows; disk holds the packed shards.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from array import array
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from common.codec import ZSTD_LEVEL_STORE
from common.errors import InputError, UsageError
from common.prove import input_fingerprint
from common.records import Row, ShardInfo
from producer.load.rows import Found, ReadOptions, line_of, usable
from producer.load.tally import Tally
from producer.sources.chat import UNSUPPORTED
from producer.sources.reader import read_rows
from producer.sources.records import Fault, Place, Raw, RowError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from producer.load.lengths import LengthCheck
    from producer.sources.url import Source

SHARD_ROWS = 1000
FAULTS_SHOWN = 10
_FOLDER_PREFIX = "genq-load-"
_PROGRESS_ROWS = 1000


@dataclass(slots=True)
class Spool:
    """What a pass found; the shards lie in ``folder`` as long as that is there."""

    folder: Path
    shards: list[ShardInfo] = field(default_factory=list)
    rows: int = 0
    skipped: int = 0
    kinds: Counter[str] = field(default_factory=Counter)  # of the skipped, by class
    faults: list[Fault] = field(default_factory=list)  # the first of the skipped
    files: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def fingerprint(self) -> str:
        """Digest of all rows in order."""
        return input_fingerprint(shard.sha256 for shard in self.shards)

    def packed(self, shard: int) -> Path:
        """File of a shard as it is uploaded."""
        return self.folder / f"{shard:06}.jsonl.zst"

    def place(self, row: int) -> Place:
        """Return where in the data set a row came from."""
        places = array("Q")
        shard, at = divmod(row, SHARD_ROWS)
        places.frombytes((self.folder / f"{shard:06}.places").read_bytes())
        return Place(self.files[places[2 * at]], places[2 * at + 1])


@contextmanager
def spool_folder() -> Iterator[Path]:
    """Make a private folder for one pass; what killed passes left behind is removed.

    A pass holds a lock on its folder for as long as it lives, so a living one is never taken.
    """
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX) as name:
        folder = Path(name)
        with (folder / "lock.new").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "lock.new").rename(folder / "lock")  # never seen without being held
            yield folder


def _sweep(parent: Path) -> None:
    for lock_path in parent.glob(f"{_FOLDER_PREFIX}*/lock"):
        with suppress(OSError), lock_path.open("rb") as lock:
            if lock_path.stat().st_uid != os.getuid():
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_path.parent, ignore_errors=True)


def spool(
    sources: Iterable[Source],
    options: ReadOptions,
    folder: Path,
    *,
    check: LengthCheck | None = None,
    progress: Callable[[int], None] = lambda _rows: None,
) -> Spool:
    """Read a data set into ``folder``; ``check`` finds rows that are too long.

    Raises:
        InputError: a source cannot be read, or not to its end; a row cannot be used (unless faults
            are skipped); or no row is left.
        UsageError: the folder is full.
    """
    result = Spool(folder)
    try:
        with Packer(result) as packer, Tally(folder) as ids:
            found = usable(read_rows(sources, options.limits), options, check)
            for row, line, place in _lines(found, options, result):
                packer.add(line, place)
                if row.id is not None:
                    ids.add(row.id)
                if result.rows % _PROGRESS_ROWS == 0:
                    progress(result.rows)
            result.notes["rows whose id an earlier row has (each is answered)"] = ids.repeated()
    except OSError as error:
        raise UsageError(
            f"The rows cannot be kept in {folder}.",
            why=error.strerror or str(error),
            fix="Name a folder with more room: export TMPDIR=/path",
        ) from error
    progress(result.rows)
    if not result.rows:
        raise InputError(
            "The data set holds no row that can be used.",
            why=f"{result.skipped:,} rows were passed over." if result.skipped else "It is empty.",
            fix="gen-producer plan DATASET    shows what was found in it",
        )
    return result


def _lines(
    found: Iterable[Found], options: ReadOptions, result: Spool
) -> Iterator[tuple[Row, bytes, Place]]:
    """Yield numbered rows and their lines; faults stop the pass or are counted."""
    for place, raw, row in found:
        if options.limit is not None and result.rows >= options.limit:
            return
        if isinstance(row, Fault) or raw is None:
            assert isinstance(row, Fault)
            _fault(row, options, result)
            continue
        numbered = replace(row, i=result.rows)
        try:
            line = line_of(numbered, options.limits.row_bytes)
        except RowError as error:
            _fault(Fault(place, str(error)), options, result)
            continue
        _note(row, raw, result.notes)
        yield numbered, line, place


def _fault(fault: Fault, options: ReadOptions, result: Spool) -> None:
    if fault.ends:
        raise InputError(
            f"{fault.place}: {fault.reason}.",
            why=f"{result.rows:,} rows before it can be used; what is behind it nobody knows, so it"
            " is never passed over. Nothing was stored or queued.",
            fix="Mend the file, get it again, or leave it out.",
        )
    if not options.skip_faults:
        raise InputError(
            f"{fault.place}: {fault.reason}.",
            why=f"{result.rows:,} rows before it can be used. Nothing was stored or queued.",
            fix="Mend it, or pass over what cannot be used: --on-error skip",
        )
    result.skipped += 1
    result.kinds[fault.kind] += 1
    if len(result.faults) < FAULTS_SHOWN:
        result.faults.append(fault)


def _note(row: Row, raw: Raw, notes: Counter[str]) -> None:
    if raw.replaced:
        notes["rows with lone surrogates (each became U+FFFD)"] += 1
    for name in UNSUPPORTED:
        if name in row.metadata:
            notes[f"rows with {name} (kept as metadata, not used)"] += 1


class Packer:
    """Writes rows into shards, one row in memory at a time."""

    def __init__(self, result: Spool) -> None:
        self._result = result
        self._places = array("Q")
        self._files: dict[str, int] = {}
        self._digest = hashlib.sha256()
        self._zstd = zstd.ZstdCompressor(level=ZSTD_LEVEL_STORE)
        self._file = result.packed(0).open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None and self._places:
            self._seal()
        self._file.close()

    def add(self, line: bytes, place: Place) -> None:
        """Take one more row's line, and where it came from."""
        result = self._result
        if result.rows and result.rows % SHARD_ROWS == 0:
            self._seal()
            self._file = result.packed(len(result.shards)).open("wb")
        self._digest.update(line)
        self._file.write(self._zstd.compress(line))
        number = self._files.setdefault(place.file, len(self._files))
        if number == len(result.files):
            result.files.append(place.file)
        self._places.extend((number, place.line))
        result.rows += 1

    def _seal(self) -> None:
        number = len(self._result.shards)
        self._file.write(self._zstd.flush())
        self._file.close()
        (self._result.folder / f"{number:06}.places").write_bytes(self._places.tobytes())
        self._result.shards.append(
            ShardInfo(
                name=self._result.packed(number).name,
                first_row=number * SHARD_ROWS,
                rows=len(self._places) // 2,
                sha256=self._digest.hexdigest(),
            )
        )
        self._places = array("Q")
        self._digest = hashlib.sha256()
        self._zstd = zstd.ZstdCompressor(level=ZSTD_LEVEL_STORE)
