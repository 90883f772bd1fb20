"""The audit: where the items of a run are, and whether that adds up.

One function is used by the tests, by ``status`` and by ``verify``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

TRUNCATED = "truncated"  # as a reason to hold a run; the other is the faults


@dataclass(frozen=True, slots=True)
class Canary:
    """How the first rows of a run went: those that were handed out first are watched."""

    state: str = "off"  # off | watching | passed | held
    rows: int = 0  # how many are watched
    finished: int = 0  # of those: each counts by its first finished try
    faults: int = 0  # of the finished; classes that the run keeps are none
    classes: dict[str, int] = field(default_factory=dict)  # of the finished; the commonest first
    held_for: str = ""  # faults | truncated, where the run is held for it, or was
    accepted: tuple[str, ...] = ()  # of these two: what does not hold the run

    @property
    def worst(self) -> str:
        """The class to look at where the run is held; "" where all is well."""
        if self.held_for == TRUNCATED:
            return TRUNCATED
        bad = [name for name in self.classes if name not in (Verdict.OK, Verdict.TRUNCATED)]
        return next(iter([*bad, *(name for name in self.classes if name != Verdict.OK)]), "")

    @property
    def cause(self) -> str:
        """Why the run is held, in words; "" if it is not held by this."""
        if self.state != "held":
            return ""
        bad = self.classes.get(TRUNCATED, 0) if self.held_for == TRUNCATED else self.faults
        names = [name for name in self.classes if name != Verdict.OK]
        names.sort(key=lambda name: name != self.worst)
        return (
            f"{bad:,} of the first {self.finished:,} rows went wrong"
            f" ({100 * bad / max(1, self.finished):.0f} %): "
            + ", ".join(f"{self.classes[name]:,} {name}" for name in names)
        )


@dataclass(frozen=True, slots=True)
class RunCounts:
    """One consistent sample of a run. Times are in seconds, by Redis' clock."""

    run: str
    epoch: str
    state: str  # loading | open | paused | held | closed | cancelled
    total: int  # items that the run has
    loaded: int  # items that were enqueued, or had a result before that
    queued: int
    waiting: int  # for a retry to be due
    leased: int  # stock RQ workers' included: what `rq info` calls executing
    generated: int  # results in the stream
    committed: int
    dead: int
    ghosts: int = 0  # ids in the queue whose item has a result; not in `queued`
    foreign: int = 0  # ids found in the queue that are not the run's, kept aside
    done: int = 0  # done bits: generated and committed
    committed_counter: int = 0
    stray_holders: int = 0  # holders without a lease, less leases without a holder
    stray_mirrors: int = 0  # the same of the mirror in rq:wip
    finished_window: int = 0  # what `rq info` calls finished: the last few minutes'
    taking: int = 0  # of `queued`: ids in RQ's intermediate list
    stream_bytes: int = 0
    prompt_tokens: int = 0  # of taken results
    completion_tokens: int = 0
    wasted_tokens: int = 0  # generated and thrown away: failures, duplicates
    failures: dict[str, int] = field(default_factory=dict)  # failed tries by class
    verdicts: dict[str, int] = field(default_factory=dict)  # results taken since it was loaded
    # Results that are there, by verdict. None: a repair brought or took some that Redis never saw.
    kept: dict[str, int] | None = field(default_factory=dict)
    hold_reason: str = ""
    canary: Canary = field(default_factory=Canary)
    priority: int = 0
    closing: str = ""  # names the last closing; no two have the same name
    at: float = 0.0  # when the sample was taken
    oldest_wait: float = 0.0  # how long the most overdue retry has been due
    since_lease: float | None = None  # since an item was last handed out; None: never
    since_result: float | None = None  # since a result was last taken
    since_commit: float | None = None  # since the sink last said that something is stored
    gpu_seconds: float = 0.0  # in which workers held items of the run, all workers together

    @property
    def open(self) -> int:
        """How many items still have to be worked on or stored."""
        return self.queued + self.waiting + self.leased + self.generated

    @property
    def settled(self) -> bool:
        """Whether every item of the run is committed or dead."""
        return self.committed + self.dead == self.total and self.open == 0


def flagged(verdicts: Mapping[str, int]) -> dict[str, int]:
    """Return what is kept and not ok, of completions by verdict; the commonest first."""
    kept = [(name, count) for name, count in verdicts.items() if name != Verdict.OK and count]
    return dict(sorted(kept, key=lambda pair: (-pair[1], pair[0])))


def check_counts(c: RunCounts) -> list[str]:
    """Return what does not add up, one sentence each; none if every item is in one place.

    ``loaded = queued + waiting + leased + generated + committed + dead``, and what else must
    hold of a run at every moment.
    """
    places = c.queued + c.waiting + c.leased + c.generated + c.committed + c.dead
    checks = (
        (
            c.loaded == places,
            (
                f"loaded {c.loaded} is not queued {c.queued} + waiting {c.waiting}"
                f" + leased {c.leased}"
                f" + generated {c.generated} + committed {c.committed} + dead {c.dead} = {places}"
            ),
        ),
        (
            c.done == c.generated + c.committed,
            (
                f"{c.done} items have a result, but {c.generated} are in the stream and"
                f" {c.committed} committed"
            ),
        ),
        (
            c.committed_counter == c.committed,
            f"{c.committed} items are committed, but {c.committed_counter} were counted",
        ),
        (c.loaded <= c.total, f"loaded {c.loaded} is more than the run's {c.total} items"),
        (c.queued >= 0, f"queued {c.queued} is negative: {c.ghosts} ghosts"),
        (c.stray_holders == 0, f"leases and holders differ by {c.stray_holders}"),
        (c.stray_mirrors == 0, f"leases and their mirror in rq:wip differ by {c.stray_mirrors}"),
    )
    return [text for holds, text in checks if not holds]
