"""What a training data set may be asked, and which states it may go on from. Without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.errors import ConflictError, UsageError
from common.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

STATE_VERSION = 1
State = dict[str, Any]  # plain values: fits JSON, torch.save and pickle


def checked_rank(
    rank: int | None, world_size: int | None, known: tuple[int, int]
) -> tuple[int, int]:
    """Return the rank and the number of ranks: as given, or as known where nothing is given.

    Raises:
        UsageError: they make no sense.
    """
    if rank is None and world_size is None:
        rank, world_size = known
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise UsageError(
            f"Rank {rank} of {world_size} cannot be.",
            why="Ranks are numbered from 0; both numbers belong together.",
            fix="For example: CompletionDataset(run, rank=0, world_size=8)",
        )
    return rank, world_size


def check_options(verdicts: Collection[str], max_tokens: int | None, too_long: str | None) -> None:
    """Raise UsageError if they cannot be used."""
    unknown = {str(one) for one in verdicts} - {str(one) for one in Verdict}
    if unknown or isinstance(verdicts, str):
        raise UsageError(
            f"verdicts is {verdicts!r}, which is not a list of classes.",
            why=f"Classes: {', '.join(Verdict)}.",
            fix='For example: verdicts=("ok", "truncated")',
        )
    if (max_tokens is None) != (too_long is None) or too_long not in (None, "skip", "cut"):
        raise UsageError(
            f"max_tokens is {max_tokens}, too_long is {too_long!r}.",
            why="Longer examples are either left out or cut, and nobody but you knows which.",
            fix='For example: max_tokens=8192, too_long="skip"',
        )
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"max_tokens is {max_tokens}.", fix="Give at least 1.")


def checked_states(
    state: State | Sequence[State], rank: int, world_size: int
) -> list[Mapping[str, Any]]:
    """Return the states to go on from: one, of this rank, or those of all ranks there were.

    Raises:
        UsageError: they are something else.
    """
    alone = isinstance(state, dict)
    states: list[Mapping[str, Any]] = [state] if isinstance(state, dict) else list(state)
    if not states or any(one.get("version") != STATE_VERSION for one in states):
        raise UsageError(
            "This is no state of a CompletionDataset that this version knows.",
            fix="Load what state_dict() returned.",
        )
    fix = "Give the states of all ranks, in a list, or start as many ranks as there were."
    first = states[0]
    if alone and (first["rank"], first["world_size"]) != (rank, world_size):
        raise UsageError(
            f"The state is that of rank {first['rank']} of {first['world_size']}, this is rank"
            f" {rank} of {world_size}.",
            fix=fix,
        )
    if not alone and not _of_all_ranks(states):
        ranks = ", ".join(str(one["rank"]) for one in states)
        raise UsageError(f"These are not the states of all ranks at one time: {ranks}.", fix=fix)
    return states


def _of_all_ranks(states: Sequence[Mapping[str, Any]]) -> bool:
    first = states[0]
    shared = ("digest", "epoch", "shuffle_seed", "world_size")
    return (
        sorted(one["rank"] for one in states) == list(range(first["world_size"]))
        and all(one[name] == first[name] for one in states for name in shared)
        and not any(one["worker"] for one in states)
    )


def too_few(run: str, there: int, asked: int) -> ConflictError:
    """Return the refusal to take more parts of a run that goes on than it has by now."""
    fewer = f", or give each rank fewer: CompletionDataset(run, parts={there})"
    return ConflictError(
        f"Run {run} has {there} parts, not {asked}, and goes on.",
        why="A rank that looks later would see more of it.",
        fix="Wait until it has them" + (fewer if there else "."),
    )


def goes_on(runs: Collection[str]) -> ConflictError:
    """Return the refusal to let several ranks read runs that go on."""
    return ConflictError(
        f"Several ranks read what is not finished: {', '.join(sorted(runs))}.",
        why="Each would take what is committed when it looks, and they might differ.",
        fix="Wait for its _SUCCESS. Of a run without child runs that go on you may give each rank"
        " the same number of parts: CompletionDataset(run, parts=100)",
    )
