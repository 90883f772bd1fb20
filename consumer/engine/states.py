"""The states of an engine and every allowed step between them."""

from __future__ import annotations

from enum import StrEnum


class EngineState(StrEnum):
    """Where an engine is in its life."""

    STOPPED = "stopped"  # nothing runs; the first and, after a stop, the last state
    STARTING = "starting"  # the process is up, the model loads
    WARMING = "warming"  # it answers; facts are read and its honesty is checked
    READY = "ready"  # takes requests
    DRAINING = "draining"  # was told to end
    BACKOFF = "backoff"  # down: what is left is ended, and the next start waits
    FATAL = "fatal"  # will not be started again without a change by a human


_S = EngineState
ARROWS: dict[EngineState, frozenset[EngineState]] = {
    _S.STOPPED: frozenset({_S.STARTING}),
    _S.STARTING: frozenset({_S.WARMING, _S.DRAINING, _S.BACKOFF}),
    _S.WARMING: frozenset({_S.READY, _S.DRAINING, _S.BACKOFF}),
    # Down in service: died, stuck or condemned.
    _S.READY: frozenset({_S.DRAINING, _S.BACKOFF}),
    _S.DRAINING: frozenset({_S.STOPPED}),
    # Once nothing of the old process is left: again, or no more.
    _S.BACKOFF: frozenset({_S.STARTING, _S.DRAINING, _S.FATAL}),
    _S.FATAL: frozenset({_S.STOPPED}),
}


def transition(now: EngineState, then: EngineState) -> EngineState:
    """Return ``then`` if the step is allowed.

    Raises:
        RuntimeError: it is not; a bug of ours.
    """
    if then not in ARROWS[now]:
        raise RuntimeError(f"an engine cannot go from {now} to {then}")
    return then
