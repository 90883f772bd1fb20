"""Every error a user can meet, with its exit code and its way out.

    GenqError                 1   a bug of ours: asks for a report
    |- UsageError             2   a flag or a setting is wrong, or a run's name
    |- InputError             3   the data set is wrong (names file:line)
    |- QueueError             4   Redis cannot be used as asked
    |  |- EpochError              the run is not (or no longer) in this Redis: load it again
    |  |- RunClosedError      7   the run is finished or cancelled (a conflict: Redis is well)
    |  |- QueueFullError          Redis is at its maxmemory: the same call works once there is room
    |  `- QueueAwayError          Redis does not answer: it may be down, or not up yet
    |- StoreError             5   object storage cannot be used as asked
    |  `- StoreAwayError          it does not answer: it may be down, not up yet, or too busy
    |- EngineError            6   the engine cannot be used
    |- ConflictError          7   a name is taken, a data set changed, a run is over, a GPU is busy
    |- DeadLettersError       8   finished, but some items are dead-lettered
    `- VerifyError            9   the output is not what run.json promised

130 and 143 are the exits after SIGINT and SIGTERM, once drained.

A message has three parts: what happened, why (the value and where it came from) and what to do
(a command to paste). One place renders them: :func:`common.cliutil.run_cli`.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of all commands; docs/operations.md tells of each, and a test compares."""

    DONE = 0
    BUG = 1
    USAGE = 2
    INPUT = 3
    QUEUE = 4
    STORE = 5
    ENGINE = 6
    CONFLICT = 7
    DEAD_LETTERS = 8
    VERIFY = 9
    INTERRUPTED = 130
    TERMINATED = 143


class GenqError(Exception):
    """The root: carries what happened, why, and what to do about it."""

    exit_code = Exit.BUG

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.why, self.fix) if part)


class UsageError(GenqError):
    """A flag or a setting cannot be used; names it and where it came from."""

    exit_code = Exit.USAGE


class InputError(GenqError):
    """A row or a file of the data set cannot be used; names file and line."""

    exit_code = Exit.INPUT


class QueueError(GenqError):
    """Redis is unreachable, refuses, or is set up in a way that would lose work."""

    exit_code = Exit.QUEUE


class EpochError(QueueError):
    """The run is missing in this Redis, or it is another incarnation of it (its epoch differs)."""


class RunClosedError(QueueError):
    """The run is finished or cancelled and takes no more work; Redis itself is well."""

    exit_code = Exit.CONFLICT


class QueueFullError(QueueError):
    """Redis is at its maxmemory and takes nothing more; the same call may work later."""


class QueueAwayError(QueueError):
    """Redis does not answer; the same call may work later."""


class StoreError(GenqError):
    """Object storage is unreachable, refuses, or breaks a promise that the commit rests on."""

    exit_code = Exit.STORE


class StoreAwayError(StoreError):
    """Object storage does not answer, or that it cannot now; the same call may work later."""


class EngineError(GenqError):
    """The engine could not be started, or is not fit to serve."""

    exit_code = Exit.ENGINE


class ConflictError(GenqError):
    """Somebody else holds the name, the data set or the GPU."""

    exit_code = Exit.CONFLICT


class DeadLettersError(GenqError):
    """The run ended, and some items are dead-lettered."""

    exit_code = Exit.DEAD_LETTERS


class VerifyError(GenqError):
    """What is in storage does not prove the run complete and unique."""

    exit_code = Exit.VERIFY
