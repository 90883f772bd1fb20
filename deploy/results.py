"""A finished run's output, copied out of the S3 server, and the lines that open it."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from common.objectstore import RunPaths
from common.parts import codec_for
from common.records import Verdict

if TYPE_CHECKING:
    from common.ids import RunName
    from common.objectstore import ObjectStat, ObjectStore

_COLUMNS = "row_id, verdict, content"


def download(store: ObjectStore, run: RunName, folder: Path) -> list[Path]:
    """Copy a run's output into ``folder``; return its data files.

    What is there already is kept if its MD5 is the object's ETag, and parts that the store holds no
    longer are removed: a run may have ended anew since. ``_SUCCESS`` comes last, so a folder that
    has one is complete.
    """
    paths = RunPaths(run)
    prefix = f"{run}/"
    success = folder / paths.success.removeprefix(prefix)
    inputs = (f"{prefix}prompts/", paths.index_prefix)
    objects = [found for found in store.list(prefix) if not found.key.startswith(inputs)]
    objects.sort(key=lambda found: (found.key == paths.success, found.key))
    targets = {folder / found.key.removeprefix(prefix): found for found in objects}
    kept = {target for target, found in targets.items() if _is_same(target, found)}
    if len(kept) < len(targets):
        kept.discard(success)
    for old in (success, *_parts(folder)):
        if old not in kept:
            old.unlink(missing_ok=True)
    for target, found in targets.items():
        if target in kept:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.new")
        draft.write_bytes(store.get(found.key))
        draft.replace(target)
    return _parts(folder)


def _parts(folder: Path) -> list[Path]:
    return sorted((folder / "data").glob("part-*"))


def _is_same(target: Path, found: ObjectStat) -> bool:
    """Return whether a file is the object, as far as the store tells: else it is fetched."""
    if not target.exists() or target.stat().st_size != found.size:
        return False
    return hashlib.md5(target.read_bytes(), usedforsecurity=False).hexdigest() == found.etag


def some_answers(files: list[Path], count: int) -> list[tuple[str, str]]:
    """Return the last prompt and the answer of the first ``count`` completions that are ok."""
    shown: list[tuple[str, str]] = []
    for file in files:
        suffix = file.name.partition(".")[2]
        for completion in codec_for(suffix).decode(file.read_bytes()):
            if len(shown) == count:
                return shown
            if completion.verdict == Verdict.OK:
                shown.append((str(completion.messages[-1]["content"]), completion.content))
    return shown


def count_truncated(files: list[Path]) -> tuple[int, int]:
    """Return how many answers were cut at their token limit, and how many answers there are."""
    cut = rows = 0
    for file in files:
        for completion in codec_for(file.name.partition(".")[2]).decode(file.read_bytes()):
            rows += 1
            cut += completion.verdict == Verdict.TRUNCATED
    return cut, rows


def opening_lines(data: Path, suffix: str) -> tuple[str, str]:
    """Return shell lines that open a data folder in DuckDB and with ``datasets``."""
    python = shlex.quote(relative(Path(sys.executable)))
    pattern = json.dumps(f"{relative(data)}/*.{suffix}", ensure_ascii=False)
    reader = "parquet" if suffix == "parquet" else "json"
    duckdb = f'import duckdb; duckdb.read_{reader}({pattern}).project("{_COLUMNS}").show()'
    datasets = (
        "from datasets import load_dataset; "
        f'print(load_dataset("{reader}", data_files={pattern}, split="train"))'
    )
    return f"{python} -c {shlex.quote(duckdb)}", f"{python} -c {shlex.quote(datasets)}"


def relative(path: Path | str) -> str:
    """Return a path as a person in the working folder would write it."""
    here = Path.cwd()
    path = Path(path).absolute()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
