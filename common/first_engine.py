"""What a run's first engine answered to the honesty check: an object beside run.json.

It outlives Redis: whoever serves the run later, be it after a FLUSHALL and a new load, is compared
with the same engine. It is put up once and never changed; who was first is settled in Redis, so
that a store that ignores conditions takes the same answers twice at worst.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import StoreAwayError, StoreError
from common.objectstore import Created, ObjectMissingError, RunPaths

if TYPE_CHECKING:
    from common.ids import RunName
    from common.objectstore import ObjectStore


def read_first(store: ObjectStore, run: RunName) -> bytes | None:
    """Return the record, or None while there is none.

    Raises:
        StoreError: the store could not be asked.
    """
    try:
        return store.get(RunPaths(run).engine)
    except ObjectMissingError:
        return None


def keep_first(store: ObjectStore, run: RunName, record: bytes) -> bytes:
    """Put a record up if there is none; return the one that stands, which may be another's.

    Raises:
        StoreAwayError: it cannot be made certain now that one stands.
        StoreError: the store refuses to write it.
    """
    key = RunPaths(run).engine
    if _put(store, key, record) is Created.CREATED:
        return record
    standing = read_first(store, run)  # also where the answer to our own PUT was lost
    if standing is None:
        raise StoreAwayError(
            f"{store.url}/{key} could not be created.",
            why="The store neither took it nor holds one.",
        )
    return standing


def _put(store: ObjectStore, key: str, record: bytes) -> Created:
    try:
        return store.create(key, record, content_type="application/json")
    except StoreAwayError:
        raise
    except StoreError:
        # Perhaps it knows no conditions at all (501). A missing right is refused again, and said.
        if store.stat(key) is not None:
            return Created.EXISTS
        store.put(key, record, content_type="application/json")
        return Created.CREATED
