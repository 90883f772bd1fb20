"""Where an export goes: into one file or stream, or into a folder with a file for each part.

A folder is resumed: its journal, ``_EXPORT``, says how the export was asked for and which files are
whole, and what a part's file was made from. At the end the folder holds no other files of ours:
those of parts that are gone, or count no longer, are removed. A single file is begun anew.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from common import codec
from common.build import build
from common.errors import ConflictError
from common.failpoint import declare, hit
from producer.export.files import SUFFIXES, Stream, WholeFile, errors_name, no_place, open_locked
from producer.export.writer import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from common.family import Family, FamilyPart
    from common.ids import RunName
    from common.objectstore import ObjectStore
    from producer.export.writer import Writer

JOURNAL = "_EXPORT"
JOURNAL_VERSION = 1
declare("export.part", "export.errors", "export.named")


@dataclass(frozen=True, slots=True)
class Job:
    """One export: what is read, and how it is written."""

    store: ObjectStore
    family: Family
    writer: Writer
    finished: bool  # the run is: its dead letters are known
    errors: bool  # the format has an error file
    packing: str
    overwrite: bool
    asked: dict[str, Any]  # the options that the output depends on
    moved: Callable[[int], None]  # told how many completions are read
    found: Counter[RunName] = field(default_factory=Counter)  # completions in the run's own parts

    def parts(self) -> Iterator[FamilyPart]:
        """Yield the parts, and count what the run's own hold, whether it counts or not."""
        run = self.family.manifest.run
        self.found[run] = 0
        for part in self.family.parts():
            if part.run == run:
                self.found[run] += len(part.items)
            yield part


def to_stream(job: Job, path: Path | None) -> Tally:
    """Write all into standard output, or into a pipe or device; there is no error file."""
    with Stream(path, job.packing) as out:
        tally = Tally()
        for part in job.parts():
            tally.add(job.writer.write(job.family.read(part), out, None))
            job.moved(tally.completions)
        out.commit()
    return tally


def to_file(job: Job, path: Path) -> Tally:
    """Write all into one file, which appears when it is whole.

    Raises:
        ConflictError: the file is there already, or another export writes it.
        UsageError: it cannot be written.
    """
    beside = path.with_name(errors_name(path.name)) if job.errors else None
    # An error file alone is what a killed export leaves: it gets its name before the other.
    if path.exists() and not job.overwrite:
        raise _taken(path)
    with ExitStack() as stack:
        out = stack.enter_context(WholeFile(path, job.packing))
        errors = stack.enter_context(WholeFile(beside, job.packing)) if beside else None
        tally = Tally()
        for part in job.parts():
            tally.add(job.writer.write(job.family.read(part), out, errors))
            job.moved(tally.completions)
            hit("export.part")
        if errors is not None:
            if job.finished:
                tally.errors += job.writer.write_dead(job.store, job.family.manifest, errors)
            _name_errors(errors, tally)
            hit("export.errors")
        out.commit()
        hit("export.named")
    return tally


def _name_errors(errors: WholeFile, tally: Tally) -> None:
    """Let the error file appear if there is a line in it; an older export's does not stay."""
    if tally.errors:
        errors.commit()
    else:
        errors.path.unlink(missing_ok=True)


def to_folder(job: Job, folder: Path) -> Tally:
    """Write a file for each part into a folder; those that are whole already are left alone.

    Raises:
        ConflictError: the folder holds another export, or one that is running.
        UsageError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_place(folder, error) from error
    tally, kept = Tally(), set[str]()
    with Journal(folder, job) as journal:
        for part in job.parts():
            name = f"{part.run}-part-{part.number:08}.jsonl{SUFFIXES[job.packing]}"
            made_from = _digest(part)
            known = journal.known(name, made_from)
            if known is None:
                journal.begin(name)
                known = _write_part(job, part, folder / name)
                journal.note(name, made_from, known)
                hit("export.named")
            kept.add(name)
            tally.add(known)
            job.moved(tally.completions)
        if job.errors:
            name = f"{job.family.manifest.run}-failed.errors.jsonl{SUFFIXES[job.packing]}"
            journal.begin(name)
            if job.finished and (dead := _write_dead(job, folder / name)):
                kept.add(name)
                tally.errors += dead
        journal.keep(kept)
    return tally


def _write_part(job: Job, part: FamilyPart, path: Path) -> Tally:
    with ExitStack() as stack:
        out = stack.enter_context(WholeFile(path, job.packing))
        errors = None
        if job.errors:
            beside = WholeFile(path.with_name(errors_name(path.name)), job.packing)
            errors = stack.enter_context(beside)
        tally = job.writer.write(job.family.read(part), out, errors)
        hit("export.part")
        if errors is not None:
            _name_errors(errors, tally)
            hit("export.errors")
        if tally.rows:
            out.commit()
        else:
            path.unlink(missing_ok=True)
    return tally


def _write_dead(job: Job, path: Path) -> int:
    with WholeFile(path, job.packing) as errors:
        count = job.writer.write_dead(job.store, job.family.manifest, errors)
        if count:
            errors.commit()
    return count


def _digest(part: FamilyPart) -> str:
    """Return what the file of a part is made from: its bytes, and which items of it count."""
    counted = hashlib.sha256(f"{part.key}\0{part.index.token}\0".encode())
    counted.update(array("q", part.items).tobytes())
    return counted.hexdigest()


class Journal:
    """Which files of a folder are whole: a line each, added when the file is on disk."""

    def __init__(self, folder: Path, job: Job) -> None:
        self._folder = folder
        self._job = job
        self._ours: set[str] = set()  # begun by us, whole or not
        self._whole: dict[str, tuple[str, Tally]] = {}

    def __enter__(self) -> Self:
        path = self._folder / JOURNAL
        self._file = open_locked(path)
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def known(self, name: str, made_from: str) -> Tally | None:
        """Return the counts of a file that is there and needs no writing, or None.

        Raises:
            ConflictError: a file of that name is there that no export made.
        """
        there = (self._folder / name).exists()
        if there and name not in self._ours and not self._job.overwrite:
            raise _taken(self._folder / name)
        if name not in self._whole:
            return None
        digest, tally = self._whole[name]
        return tally if digest == made_from and (there or not tally.rows) else None

    def begin(self, name: str) -> None:
        """Note that a file is about to be written, so that the next export knows whose it is."""
        self._add({"begun": name})
        self._recall({"begun": name})

    def note(self, name: str, made_from: str, tally: Tally) -> None:
        """Note that a file is whole."""
        self._whole[name] = (made_from, tally)
        self._add({"file": name, "from": made_from, "counts": asdict(tally)})

    def keep(self, names: Collection[str]) -> None:
        """Remove all other files of ours: what they were made from is gone, or counts no longer."""
        for name in self._ours.difference(names):
            if name in self._whole:  # if its part comes back, it is to be written again
                self.begin(name)
            self._remove(name)

    def _remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
        (self._folder / errors_name(name)).unlink(missing_ok=True)

    def _read(self) -> None:
        lines = self._file.read().split(b"\n")[:-1]  # the last one may be torn
        header = {"version": JOURNAL_VERSION, **self._job.asked}
        if lines and codec.loads(lines[0]) == header:
            self._file.seek(sum(len(line) + 1 for line in lines))
            self._file.truncate()
            for line in lines[1:]:
                self._recall(codec.loads(line))
            return
        if lines and not self._job.overwrite:
            raise ConflictError(
                f"{self._folder} holds another export.",
                why=f"It was made with {_told(lines[0])}; now asked for: {_told(header)}.",
                fix="Name another folder, or add --overwrite.",
            )
        for line in lines[1:]:
            self._recall(codec.loads(line))
        for name in self._ours:
            self._remove(name)
        self._ours, self._whole = set(), {}
        self._file.seek(0)
        self._file.truncate()
        self._add(header)

    def _recall(self, noted: dict[str, Any]) -> None:
        if "begun" in noted:
            self._ours.add(noted["begun"])
            self._whole.pop(noted["begun"], None)
        else:
            self._whole[noted["file"]] = (noted["from"], build(Tally, noted["counts"]))

    def _add(self, line: dict[str, Any]) -> None:
        self._file.write(codec.dumps(line) + b"\n")
        self._file.flush()


def _told(header: bytes | dict[str, Any]) -> str:
    given = codec.loads(header) if isinstance(header, bytes) else header
    return ", ".join(f"{name} {value}" for name, value in given.items() if name != "version")


def _taken(path: Path) -> ConflictError:
    return ConflictError(
        f"{path} is there already.",
        why="An export does not write over what it does not know.",
        fix="Name another OUT, or add --overwrite.",
    )
