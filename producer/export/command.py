"""`gen-producer export`: the words around it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import codec
from common.errors import Exit, UsageError
from common.family import Family
from common.ids import run_name
from common.losses import Ends, loss_words
from common.no_such_run import not_in_store
from common.objectstore import ObjectMissingError, RunPaths
from common.s3 import open_store
from producer.export.files import SUFFIXES, packing_of
from producer.export.formats import FORMATS
from producer.export.places import Job, to_file, to_folder, to_stream
from producer.export.rows import Options
from producer.export.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.settings import Settings
    from producer.console import Console
    from producer.export.formats import Format
    from producer.export.writer import Tally

JSON_VERSION = 1
_STDOUT = "-"
_FOREIGN = (".parquet", ".arrow", ".csv")


def run_export(
    run: str, out: str, settings: Settings, console: Console, options: dict[str, Any]
) -> int:
    """Export a run, and say what was written and what was left out.

    Where the last parts of a finished run are gone, what is left is exported, and the exit code
    is that of a damaged run.

    Raises:
        UsageError: there is no such run.
        UsageError, ConflictError: OUT cannot be written, or is there already.
        StoreError: storage gave no answer.
        VerifyError: a part is damaged, or was deleted from among others.
    """
    chosen = FORMATS[options["to"]]
    packing = _packing(out, options["compress"])
    store = open_store(settings)
    name = run_name(run)
    try:
        family = Family.of(store, name)
    except ObjectMissingError as error:
        raise not_in_store(store, name) from error
    ends = Ends(store, [name, *(child.run for child in family.children)])
    with console.progress("Exporting", family.manifest.items) as moved:
        job = _job(store, family, options, packing=packing, moved=moved)
        tally = _write(job, out)
    lost = {name: ends.lost(name, job.found[name])}
    lost |= {child.run: ends.lost(child.run) for child in family.children}
    lost = {run: count for run, count in lost.items() if count}
    _tell(job, chosen, out, tally, console, lost=lost)
    return Exit.VERIFY if lost else Exit.DONE


def _job(
    store: ObjectStore,
    family: Family,
    options: dict[str, Any],
    *,
    packing: str,
    moved: Callable[[int], None],
) -> Job:
    chosen = FORMATS[options["to"]]
    manifest = family.manifest
    reasoning = chosen.reasoning if options["reasoning"] is None else options["reasoning"]
    verdicts = frozenset(options["only"] or ("ok",)) | frozenset(options["include"])
    how = Options(
        run=manifest.run,
        samples=manifest.settings.samples,
        per_turn=options["per_turn"],
        reasoning=reasoning,
    )
    return Job(
        store=store,
        family=family,
        writer=Writer(chosen, how, verdicts),
        finished=store.stat(RunPaths(manifest.run).success) is not None,
        errors=chosen.errors,
        packing=packing,
        overwrite=options["overwrite"],
        asked={
            "run": manifest.run,
            "input": manifest.fingerprint,
            "to": chosen.name,
            "verdicts": sorted(verdicts),
            "per_turn": how.per_turn,
            "reasoning": how.reasoning,
            "compress": packing,
        },
        moved=moved,
    )


def _is_folder(out: str) -> bool:
    return out.endswith("/") or Path(out).is_dir()


def _is_stream(out: str) -> bool:
    return out == _STDOUT or (Path(out).exists() and not Path(out).is_file())


def _packing(out: str, asked: str | None) -> str:
    """Return how the output is packed.

    Raises:
        UsageError: OUT is a place that cannot be written, or its name says otherwise than the flag.
    """
    if "://" in out:
        raise UsageError(
            f"OUT is {out}, which is not on this machine.",
            why="An export is written to a file, to a folder, or to standard output.",
            fix="Export into a folder, then copy that: aws s3 cp --recursive FOLDER/ s3://...",
        )
    if out == _STDOUT or _is_folder(out):
        return asked or "none"
    if out.endswith(_FOREIGN):
        raise UsageError(
            f"{out} would not be what its name says.",
            why="Every format of an export is JSON, one object a line.",
            fix=f"Name it {out.rpartition('.')[0]}.jsonl",
        )
    named = packing_of(out)
    if asked is not None and asked != named:
        raise UsageError(
            f"--compress {asked} does not fit the name {out}.",
            why="A file is packed as its name says: .gz, .zst, or neither.",
            fix=f"Name it {out.removesuffix(SUFFIXES[named])}{SUFFIXES[asked]}",
        )
    return named


def _write(job: Job, out: str) -> Tally:
    if _is_folder(out):
        return to_folder(job, Path(out))
    if _is_stream(out):
        return to_stream(job, None if out == _STDOUT else Path(out))
    return to_file(job, Path(out))


def _tell(
    job: Job, chosen: Format, out: str, tally: Tally, console: Console, *, lost: dict[RunName, int]
) -> None:
    data = {
        "version": JSON_VERSION,
        "run": job.family.manifest.run,
        "format": chosen.name,
        "out": out,
        "finished": job.finished and not lost,
        "lost": lost,
        "items": job.family.manifest.items,
        **asdict(tally),
    }
    if out != _STDOUT:
        console.result(_words(tally, out), data)
    elif console.json:
        console.warn(codec.dumps(data).decode())  # standard output holds the rows
    else:
        console.say(_words(tally, "standard output"))
    for line in _notes(job, chosen, out, tally):
        console.say(line)
    for run, count in lost.items():
        console.warn(f"This is not the whole run: {loss_words(run, count)}")


def _words(tally: Tally, place: str) -> str:
    lines = [f"{tally.exported:,} completions exported as {tally.rows:,} rows to {place}"]
    if tally.errors:
        lines.append(f"  {tally.errors:,} items in the error file")
    lines += [
        f"  {count:,} left out: {verdict} (--include {verdict})"
        for verdict, count in sorted(tally.excluded.items())
    ]
    lines += [f"  {count:,} left out: {why}" for why, count in sorted(tally.unfit.items())]
    return "\n".join(lines)


def _notes(job: Job, chosen: Format, out: str, tally: Tally) -> list[str]:
    notes = []
    if not job.finished:
        left = job.family.manifest.items - tally.completions
        notes.append(f"Note: the run is not finished: {left:,} items have no completion yet.")
    if chosen.plain_only and job.packing != "none":
        notes.append(f"Note: {chosen.name} reads plain .jsonl files only: unpack this first.")
    if chosen.errors and _is_stream(out):
        notes.append("Note: items without output have no line: the error file needs a named OUT.")
    return notes
