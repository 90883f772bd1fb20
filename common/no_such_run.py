"""The error of every command that is given a run that is not there: one code, one text."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from common.errors import StoreError, UsageError
from common.ids import run_name
from common.nearest import did_you_mean
from common.objectstore import RunPaths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common.ids import RunName
    from common.objectstore import ObjectStore

_LIST = "gen-producer status    lists the runs"


def not_in_redis(run: RunName, known: Iterable[str]) -> UsageError:
    """Return the error that says that Redis, which knows these, does not know a run."""
    return UsageError(
        f"There is no run {run} in Redis{did_you_mean(run, known)}",
        why="It was never loaded there, or Redis lost it.",
        fix=f"{_LIST}    (if Redis lost it: gen-producer load --run {run})",
    )


def not_in_store(
    store: ObjectStore, run: RunName, *, where: str = "", fix: str = _LIST
) -> UsageError:
    """Return the error that says that object storage has no such run; looks for the nearest.

    ``where``: what was looked at, if it was more than that. A folder of that name that has lost
    its ``run.json``, or never had one, is told as what it is.
    """
    known = stored_runs(store)
    if run in known:
        return UsageError(
            f"Run {run} in {store.url} has no run.json, though other objects of it are there.",
            why=f"{store.url}/{RunPaths(run).run_json} was deleted, or its load was cut off.",
            fix=f"gen-producer load DATASET --run {run}    with the same rows and flags writes it"
            " again",
        )
    return UsageError(
        f"There is no run {run} in {where or store.url}{did_you_mean(run, known)}",
        why=f"{store.url}/{RunPaths(run).run_json} is not there.",
        fix=fix,
    )


def stored_runs(store: ObjectStore) -> set[RunName]:
    """Return the names of the folders that may be runs; fewer where they cannot be listed."""
    with suppress(StoreError):  # only a hint: what is not there is said all the same
        return folder_runs(store)
    return set()


def folder_runs(store: ObjectStore) -> set[RunName]:
    """Return the names of the folders that may be runs; raises StoreError."""
    found: set[RunName] = set()
    for folder in store.folders():
        with suppress(UsageError):
            found.add(run_name(folder))
    return found
