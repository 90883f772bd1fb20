"""The end of a burst: what became of each run that it served, and the error that it ends with.

A run that Redis lost is over to nobody: only storage can still say that it was finished.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from common.errors import DeadLettersError, EpochError, QueueError, StoreAwayError, StoreError
from common.unfinished import unfinished_runs
from consumer.sink.told import end_of
from consumer.sink.tools import Calls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from common.errors import ConflictError, GenqError
    from common.ids import RunName
    from common.records import RunInfo
    from consumer.sink.run import RunSink
    from consumer.sink.tools import Tools

SHOWN = 5


class Burst:
    """What a burst has seen of the runs that it is there for."""

    def __init__(self, tools: Tools) -> None:
        self._store = tools.store
        self._calls = Calls(tools)
        self._states: dict[RunName, str] = {}  # of all runs that it found, as they were last
        self._gone: set[RunName] = set()

    def saw(self, found: Iterable[RunInfo]) -> None:
        """Take what Redis holds now. A run that is loaded again is lost no more."""
        now = {info.run: info.state for info in found}
        self._states.update(now)
        self._gone = self._states.keys() - now.keys()

    async def verdict(
        self, sinks: Collection[RunSink], elsewhere: Sequence[ConflictError]
    ) -> GenqError | None:
        """Return what a burst of which all is over ends with; None: all is finished.

        Raises:
            StoppingError: the sink was told to stop before storage answered.
        """
        if not sinks and not self._gone:
            return elsewhere[0] if elsewhere else await self._nothing_found()
        for sink in sinks:
            if sink.broken:
                return sink.broken
        lost, dead = [], {sink.run: sink.dead for sink in sinks if sink.dead}
        for run in sorted(self._gone):
            end = await self._calls.store(partial(end_of, self._store, run))
            if end is None and self._states[run] != "cancelled":
                lost.append(run)
            elif end and end.dead:
                dead[run] = end.dead
        if lost:
            return _lost(lost)
        return _dead(dead) if dead else None

    async def _nothing_found(self) -> GenqError | None:
        """Return what to say of an empty Redis; None where no run of the store waits for it."""

        def look() -> tuple[list[RunName], int] | StoreError:
            try:
                return unfinished_runs(self._store)
            except StoreAwayError:
                raise  # it is waited for
            except StoreError as error:
                return error

        found = await self._calls.store(look)
        if isinstance(found, StoreError):
            return found
        runs, left = found
        if not runs:
            return None
        more = f" and {len(runs) - SHOWN:,} more" if len(runs) > SHOWN else ""
        unseen = f" {left:,} more folders were not looked at." if left else ""
        return QueueError(
            f"No run is in Redis, and {self._store.url} holds {len(runs):,} that are not finished:"
            f" {', '.join(runs[:SHOWN])}{more}.{unseen}",
            why="Redis lost them, or is not the one that they were loaded into.",
            fix=f"gen-producer load --run {runs[0]}    (and so each that is to go on); then start"
            " this again",
        )


def _lost(runs: Sequence[RunName]) -> EpochError:
    one = len(runs) == 1
    return EpochError(
        f"Redis lost {'run' if one else 'runs'} {', '.join(runs)} before the end of"
        f" {'it' if one else 'them'}.",
        why=f"{'It was' if one else 'They were'} there, and not finished. What is stored stays.",
        fix="\n".join(f"gen-producer load --run {run}" for run in runs[:SHOWN])
        + "    and start this again",
    )


def _dead(counts: dict[RunName, int]) -> DeadLettersError:
    told = ", ".join(f"{run}: {count}" for run, count in counts.items())
    return DeadLettersError(
        f"Finished, with dead-lettered items ({told}).",
        why="failed.jsonl beside the data names each with its reason.",
        fix=f"gen-producer failed {next(iter(counts))}",
    )
