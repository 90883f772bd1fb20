"""What to say where Redis knows no run: which runs storage holds that are to be put back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.s3 import open_store
from common.unfinished import unfinished_runs

if TYPE_CHECKING:
    from common.ids import RunName
    from common.settings import Settings

SHOWN = 20
_NONE = "No run is in Redis"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Runs of a store that wait for somebody."""

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
        runs, left = unfinished_runs(store)
    except StoreError as error:
        return Unfinished(store.url, [], trouble=error.what)
    return Unfinished(store.url, runs, left=left)


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
