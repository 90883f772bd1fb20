"""Why a run hands nothing out to a trial, and what a person has to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from common.no_such_run import not_in_redis
from common.queue.run_list import OVER
from common.queue.standing import Stop, stop_of
from consumer.engine.launch import DETERMINISTIC_FLAG
from consumer.leases.catalogue import mismatch
from consumer.tuning.results import Outcome, Trial

if TYPE_CHECKING:
    from common.ids import RunName
    from common.queue.run_state import Runs
    from common.records import RunInfo
    from consumer.engine.api import EngineFacts
    from consumer.leases.catalogue import Catalogue


async def stop_before(runs: Runs, run: RunName) -> Stop | None:
    """Return why no server need be started for a run; None: it may hand something out.

    Raises:
        QueueError: Redis did not answer.
    """
    info = await runs.get(run)
    return _missing(run) if info is None else _stop(info, suspended=await runs.suspended())


def stop_now(catalogue: Catalogue, run: RunName, facts: EngineFacts) -> Stop | None:
    """Return why a consumer may lease nothing of its run though its engine is up; None: it may."""
    if not (closed := catalogue.closed):
        return None
    info = next((one for one in catalogue.infos if one.run == run), None)
    if info is None:
        return _missing(run)
    if stop := _stop(info, suspended=catalogue.suspended):
        return stop
    if error := catalogue.unreadable.get(run):
        return Stop(error.what, error.why, error.fix)
    if run in catalogue.unequal:
        return Stop(
            f"Run {run} asks for equal tokens: nothing of it is handed out.",
            "The engine of a trial does not promise them.",
            f"gen-consumer tune --live {run} ... -- {DETERMINISTIC_FLAG}",
        )
    why = mismatch(info, facts) or closed
    return Stop(f"Run {run} is not for this engine.", f"{why}.", f"gen-producer status {run}")


def stopped(stop: Stop, trial: Trial | None = None) -> Trial:
    """Return a trial that came to nothing because of that; ``trial``: as far as it came."""
    outcome, why = Outcome.STOPPED, " ".join(f"{stop.what} {stop.why}".split())
    return replace(trial or Trial(outcome), outcome=outcome, why=why, fix=stop.fix)


def _stop(info: RunInfo, *, suspended: bool) -> Stop | None:
    if info.state in OVER:
        why = "Nothing of it is left to hand out."
        fix = f"gen-producer status {info.run}"
        return Stop(f"Run {info.run} is {info.state}.", why, fix)
    return stop_of(info.run, info.state, suspended=suspended, reason=info.hold_reason)


def _missing(run: RunName) -> Stop:
    error = not_in_redis(run, ())
    return Stop(error.what, error.why, error.fix)
