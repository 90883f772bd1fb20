"""What ``_SUCCESS`` of a run tells of its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from common import codec
from common.objectstore import ObjectMissingError, RunPaths

if TYPE_CHECKING:
    from common.ids import RunName
    from common.objectstore import ObjectStore


class Told(NamedTuple):
    """An end as it was written; of one that cannot be read is known only that it is there."""

    committed: int = 0
    dead: int = 0
    closing: str = ""


def end_of(store: ObjectStore, run: RunName) -> Told | None:
    """Return what the end of a run tells; None if it has none.

    Raises:
        StoreError: the store gave no answer; call it again.
    """
    try:
        told = codec.loads(store.get(RunPaths(run).success))
        return Told(int(told["committed"]), int(told["dead"]), str(told["closing"]))
    except ObjectMissingError:
        return None
    except (ValueError, KeyError, TypeError):
        return Told()
