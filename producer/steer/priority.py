"""`gen-producer priority`: which of several runs is served first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producer.steer.control import ask, done

if TYPE_CHECKING:
    from common.queue.run_state import Runs
    from common.records import RunInfo
    from common.settings import Settings
    from producer.console import Console


def run_priority(run: str, priority: int, settings: Settings, console: Console) -> int:
    """Set a run's priority, and say what is served now, in order.

    Raises:
        UsageError: Redis has no such run.
    """

    async def change(runs: Runs, info: RunInfo) -> tuple[int, list[RunInfo]]:
        before = await runs.set_priority(info.run, priority)
        return before, await runs.list()

    before, infos = ask(run, settings, change)
    order = [info for info in infos if info.state not in ("closed", "cancelled")]
    words = f"Run {run} has priority {priority}" + (
        f" (it was {before})." if before != priority else ", as before."
    )
    if len(order) > 1:
        served = ", ".join(f"{info.run} ({info.priority})" for info in order)
        words += f"\nServed in this order: {served}"
    return done(console, run, "prioritised", words, priority=priority, before=before)
