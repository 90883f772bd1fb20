"""What a trial of a round came to; kept as JSON in the journal, so fields are only ever added."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_RETRACTED = 0.01  # of the answered requests, for a setting that may win


class Outcome(StrEnum):
    """How a trial ended. Each is a result."""

    OK = "ok"
    CUT = "cut"  # far behind the best at the same age
    CRASHED = "crashed"
    MEMORY = "memory"  # it ran out of the card's memory
    HUNG = "hung"
    DISHONEST = "dishonest"  # its answers are wrong, whatever its speed
    LATE = "late"  # the round's minutes were over before it was measured
    STOPPED = "stopped"  # it was stopped, or came to nothing by no fault of its setting: once more


@dataclass(frozen=True, slots=True)
class Trial:
    """One server, tried. Times in seconds, rates in the steady state."""

    outcome: Outcome
    why: str = ""
    fix: str = ""  # what a person has to do first, where it was stopped for want of that
    flags: tuple[str, ...] = ()  # beyond the base flags
    window: int | None = None
    point: dict[str, Any] = field(default_factory=dict)
    changes_outputs: bool = False
    predicted: float | None = None
    tokens_per_second: float = 0.0
    requests_per_second: float = 0.0
    measured_seconds: float = 0.0
    start_seconds: float = 0.0
    seconds: float = 0.0  # all of it
    end_seconds: float = 0.0  # its server's end, which may come after the time that was ordered
    max_running: int = 0  # as the engine says
    running: float = 0.0  # on average
    retractions: int = 0
    retracted_share: float = 0.0  # of the answered requests
    most_usage: float = 0.0  # of the token pool
    kv_tokens: int | None = None
    state_slots: int | None = None
    prompt_tokens: float = 0.0  # of a request, on average
    output_tokens: float = 0.0
    cached_share: float = 0.0  # of the prompt tokens
    accept_length: float | None = None
    power_watts: float | None = None
    utilization: float | None = None
    answered: int = 0
    failed: int = 0
    version: str = ""  # of the engine
    honesty: str = ""  # passed | not checked | the words of the refusal
    rungs: dict[str, float] = field(default_factory=dict)  # age -> rate, to cut others by
    kept: int = 0  # completions that went into a run

    @property
    def score(self) -> float:
        """What the search climbs: the rate, less what retraction makes of it; 0 for no rate."""
        if self.outcome not in (Outcome.OK, Outcome.CUT):
            return 0.0
        return self.tokens_per_second * max(0.0, 1 - 10 * self.retracted_share)

    @property
    def may_win(self) -> bool:
        """Whether it was measured whole, with next to no retraction."""
        return self.outcome is Outcome.OK and self.retracted_share <= MOST_RETRACTED

    @property
    def ages(self) -> dict[float, float]:
        """The rates at each age."""
        return {float(age): rate for age, rate in self.rungs.items()}

    def as_json(self) -> dict[str, Any]:
        """Return it as data; :func:`trial_of` reads it back."""
        return asdict(self)


def trial_of(data: Mapping[str, Any]) -> Trial:
    """Return the trial that :meth:`Trial.as_json` wrote; what it does not know is left out."""
    known = {one.name for one in fields(Trial)}
    values = {name: value for name, value in data.items() if name in known}
    values["outcome"] = Outcome(values["outcome"])
    values["flags"] = tuple(values.get("flags", ()))
    return Trial(**values)
