"""Which runs of a store are not finished: what Redis is to be given back where it has lost all.

A run that somebody has cancelled is none of these, as long as it is not loaded again. That is in
``cancelled.json`` beside it: Redis alone would forget it with the rest.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from common.codec import dumps, loads
from common.no_such_run import folder_runs
from common.objectstore import ObjectMissingError, RunPaths

if TYPE_CHECKING:
    from common.ids import RunName
    from common.objectstore import ObjectStore

LOOKED = 200  # folders, in their order: three requests each at most
_PARALLEL = 8


def unfinished_runs(store: ObjectStore) -> tuple[list[RunName], int]:
    """Return the runs that wait for somebody, and how many folders were not looked at.

    Such a run has a ``run.json``, no ``_SUCCESS``, and was not cancelled.

    Raises:
        StoreError: the store could not be asked.
    """
    names = sorted(folder_runs(store))
    with ThreadPoolExecutor(_PARALLEL) as pool:
        answers = list(pool.map(lambda run: _waits(store, run), names[:LOOKED]))
    found = [run for run, waits in zip(names, answers, strict=False) if waits]
    return found, max(0, len(names) - LOOKED)


def _waits(store: ObjectStore, run: RunName) -> bool:
    return is_unfinished(store, run) and not is_cancelled(store, run)


def is_unfinished(store: ObjectStore, run: RunName) -> bool:
    """Return whether a run is there and has no end; raises StoreError."""
    paths = RunPaths(run)
    return store.stat(paths.success) is None and store.stat(paths.run_json) is not None


def is_cancelled(store: ObjectStore, run: RunName) -> bool:
    """Return whether somebody has cancelled a run, and nobody loaded it since; raises StoreError.

    Not told of runs that an older release has cancelled.
    """
    try:
        return loads(store.get(RunPaths(run).cancelled))["cancelled"] is True
    except (ObjectMissingError, ValueError, KeyError, TypeError):
        return False


def keep_cancelled(store: ObjectStore, run: RunName) -> None:
    """Remember that a run is cancelled; raises StoreError."""
    _keep(store, run, cancelled=True)


def forget_cancelled(store: ObjectStore, run: RunName) -> None:
    """A cancelled run goes on; raises StoreError."""
    if is_cancelled(store, run):
        _keep(store, run, cancelled=False)  # written, not deleted: few keys may delete


def _keep(store: ObjectStore, run: RunName, *, cancelled: bool) -> None:
    data = dumps({"cancelled": cancelled})
    store.put(RunPaths(run).cancelled, data, content_type="application/json")
