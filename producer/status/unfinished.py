"""What to say where Redis knows no run: which runs storage holds that are to be put back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.no_such_run import folder_runs
from common.objectstore import RunPaths
from common.s3 import open_store

if TYPE_CHECKING:
    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.settings import Settings

LOOKED = 200  # folders, in their order: two requests each at most
SHOWN = 20
_PARALLEL = 8
_NONE = "No run is in Redis"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Runs with a ``run.json`` and no ``_SUCCESS``."""

    url: str
    runs: list[RunName]
    left: int = 0  # folders that were not looked at
    trouble: str = ""  # why storage could not be asked


def unfinished(settings: Settings) -> Unfinished | None:
    """Return the unfinished runs of the store that the settings name; None if they name none.

    Raises:
        UsageError: what they name is no store.
    """
    if not settings.store:
        return None
    store = open_store(settings)
    try:
        names = sorted(folder_runs(store))
        with ThreadPoolExecutor(_PARALLEL) as pool:
            answers = pool.map(lambda name: _is_open(store, name), names[:LOOKED])
            found = [name for name, is_open in zip(names, answers, strict=False) if is_open]
    except StoreError as error:
        return Unfinished(store.url, [], trouble=error.what)
    return Unfinished(store.url, found, left=max(0, len(names) - LOOKED))


def unfinished_words(found: Unfinished | None) -> str:
    """Return what to say of them, and the command that goes on."""
    load = "gen-producer load DATASET"
    if found is None:
        return f"{_NONE}.\nNext: {load}    (or, after a loss: --run NAME)"
    if found.trouble:
        return (
            f"{_NONE}. Which runs of {found.url} are unfinished cannot be told: {found.trouble}"
            f"\nNext: {load}    (or, after a loss: --run NAME)"
        )
    left = f" {found.left:,} more folders were not looked at." if found.left else ""
    if not found.runs:
        return f"{_NONE}, and {found.url} holds none that is unfinished.{left}\nNext: {load}"
    lines = [f"{_NONE}. {found.url} holds {len(found.runs):,} that are not finished:{left}"]
    lines += [f"  {run}" for run in found.runs[:SHOWN]]
    if (more := len(found.runs) - SHOWN) > 0:
        lines.append(f"  ... and {more:,} more: gen-producer status --json")
    each = "    (and so each that is to go on)" if len(found.runs) > 1 else ""
    return "\n".join([*lines, f"Next: gen-producer load --run {found.runs[0]}{each}"])


def _is_open(store: ObjectStore, run: RunName) -> bool:
    paths = RunPaths(run)
    return store.stat(paths.success) is None and store.stat(paths.run_json) is not None
