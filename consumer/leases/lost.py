"""Runs that a burst was there for and that Redis lost: it is not done with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import EpochError, StoreError
from common.objectstore import RunPaths
from common.queue.run_list import OVER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.records import RunInfo


class Served:
    """The runs that a consumer was there for, as Redis told of them last."""

    def __init__(self) -> None:
        self._states: dict[RunName, str] = {}
        self._gone: set[RunName] = set()

    def saw(self, infos: Iterable[RunInfo], wanted: Collection[RunName]) -> None:
        """Take what Redis holds now. A run that is loaded again is lost no more."""
        now = {info.run: info.state for info in infos}
        mine = {run for run, state in now.items() if run in wanted and state not in OVER}
        self._states = {
            run: now.get(run, self._states.get(run, "")) for run in self._states.keys() | mine
        }
        self._gone = self._states.keys() - now.keys()

    def refuse_lost(self, store: ObjectStore) -> None:
        """Raise if Redis lost a run that was not over, and that storage does not tell the end of.

        Raises:
            EpochError: that is so.
        """
        gone = [run for run in sorted(self._gone) if self._states[run] not in OVER]
        if lost := [run for run in gone if not _is_finished(store, run)]:
            raise EpochError(
                f"Redis lost {', '.join(lost)} before the end: nothing of it can be leased.",
                why="It was there, and not finished. What is stored stays.",
                fix="\n".join(f"gen-producer load --run {run}" for run in lost)
                + "    and start this again",
            )


def _is_finished(store: ObjectStore, run: RunName) -> bool:
    try:
        return store.stat(RunPaths(run).success) is not None
    except StoreError:
        return False  # nobody says so
