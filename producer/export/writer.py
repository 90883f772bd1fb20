"""The lines of an export: from completions to rows, with a count of all that is left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from common import codec
from common.objectstore import RunPaths
from producer.export.openai import error_line
from producer.export.rows import UnfitError
from producer.stored_letters import letters_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common.objectstore import ObjectStore
    from common.records import Completion, RunManifest
    from producer.export.formats import Format
    from producer.export.rows import Options


class Out(Protocol):
    """Where lines go."""

    def write(self, lines: bytes) -> None:
        """Write whole lines."""


@dataclass(slots=True)
class Tally:
    """What became of the completions of a run, or of a part of it."""

    completions: int = 0  # read
    exported: int = 0  # of them
    rows: int = 0  # lines written
    errors: int = 0  # lines in the error file
    excluded: dict[str, int] = field(default_factory=dict)  # by verdict
    unfit: dict[str, int] = field(default_factory=dict)  # by reason

    def add(self, other: Tally) -> None:
        """Count another's in."""
        self.completions += other.completions
        self.exported += other.exported
        self.rows += other.rows
        self.errors += other.errors
        for mine, theirs in ((self.excluded, other.excluded), (self.unfit, other.unfit)):
            for name, count in theirs.items():
                _count(mine, name, count)


def _count(counts: dict[str, int], name: str, more: int = 1) -> None:
    counts[name] = counts.get(name, 0) + more


class Writer:
    """Writes completions in one format."""

    def __init__(self, chosen: Format, options: Options, verdicts: frozenset[str]) -> None:
        self._format = chosen
        self._options = options
        self._verdicts = verdicts

    def write(self, completions: Iterable[Completion], out: Out, errors: Out | None) -> Tally:
        """Write the rows of completions, one completion in memory at a time; return the counts."""
        tally = Tally()
        for one in completions:
            tally.completions += 1
            why = self._write_one(one, out, tally)
            if why and errors is not None:
                line = error_line(
                    self._options,
                    k=one.k,
                    row=one.row,
                    row_id=one.row_id,
                    code=one.verdict,
                    message=why,
                )
                errors.write(codec.dumps(line) + b"\n")
                tally.errors += 1
        return tally

    def _write_one(self, one: Completion, out: Out, tally: Tally) -> str:
        """Write one completion; return why there is nothing of it in the output, or ""."""
        if one.verdict not in self._verdicts:
            _count(tally.excluded, one.verdict)
            return f"The completion is {one.verdict}; --include {one.verdict} exports it."
        try:
            rows = self._format.rows(one, self._options)
        except UnfitError as error:
            _count(tally.unfit, str(error))
            return f"The completion does not fit the format: {error}."
        out.write(b"".join(codec.dumps(row) + b"\n" for row in rows))
        tally.exported += 1
        tally.rows += len(rows)
        return ""

    def write_dead(self, store: ObjectStore, manifest: RunManifest, errors: Out) -> int:
        """Write a line for each dead letter of a finished run; return how many.

        Raises:
            StoreError: the store could not be asked.
            VerifyError: one is damaged.
        """
        found = store.stat(RunPaths(manifest.run).failed)
        if found is None:
            return 0
        written = 0
        for letter in letters_of(store, manifest, found):
            line = error_line(
                self._options,
                k=letter["k"],
                row=letter["row"],
                row_id=letter["row_id"],
                code=letter["verdict"],
                message=letter["text"],
            )
            errors.write(codec.dumps(line) + b"\n")
            written += 1
        return written
