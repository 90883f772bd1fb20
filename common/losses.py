"""What the parts of a run and of its child runs lack of what was there: an output of them is less.

A part that is gone from among others shows in their numbers. Of the last ones nothing is left that
shows it, so the `_SUCCESS` of a finished run is asked how many completions it had at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import codec
from common.errors import VerifyError
from common.objectstore import ObjectMissingError, RunPaths
from common.parts.chain import check_end, part_number, read_format, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.ids import RunName
    from common.objectstore import ObjectStore


class Ends:
    """What finished runs held at their ends. To be made before their parts are read."""

    def __init__(self, store: ObjectStore, runs: Sequence[RunName]) -> None:
        """Look at the ends of runs, and at the numbers of their parts.

        Raises:
            StoreError: the store could not be asked.
            VerifyError: a part was deleted from among others, or a _SUCCESS is damaged.
        """
        self._store = store
        self._said = {run: said for run in runs if (said := _committed(store, run)) is not None}
        for run in runs:
            _check_gaps(store, run)

    def lost(self, run: RunName, found: int | None = None) -> int:
        """Return how many completions a run lacks, none while it goes on.

        ``found`` are those that were read of it; None: by the indexes of its parts.

        Raises:
            StoreError: the store could not be asked.
            VerifyError: a part is damaged.
        """
        if run not in self._said:
            return 0
        there = _stored(self._store, run) if found is None else found
        return max(0, self._said[run] - there)


def loss_words(run: str, count: int) -> str:
    """Return what is to be said of a run's loss."""
    return (
        f"{count:,} completions of {run} that its _SUCCESS counts are in no part: the last parts"
        f" are gone. gen-producer load --run {run}    has them made again"
    )


def _committed(store: ObjectStore, run: RunName) -> int | None:
    """Return how many completions a run had at its end, None while it goes on."""
    key = RunPaths(run).success
    try:
        return int(codec.loads(store.get(key))["committed"])
    except ObjectMissingError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise VerifyError(
            f"{store.url}/{key} is damaged.",
            why="It does not say how many completions there were.",
            fix=f"gen-producer load --run {run}    has it written again",
        ) from error


def _check_gaps(store: ObjectStore, run: RunName) -> None:
    paths = RunPaths(run)
    suffix = read_format(store, paths)
    if suffix is None:
        return
    end = 0
    for stat in store.list(paths.data_prefix):
        named = part_number(paths, stat.key)
        if named is None or named[1] != suffix:
            continue
        if named[0] > end:
            # A look-up decides: of a part that is being committed a listing may tell late.
            check_end(store, paths, suffix, end)
        end = named[0] + 1


def _stored(store: ObjectStore, run: RunName) -> int:
    paths = RunPaths(run)
    suffix = read_format(store, paths)
    return sum(len(one.index.items) for one in walk(store, paths, suffix)) if suffix else 0
