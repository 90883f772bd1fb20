"""Whether this engine answers as the first one did that served a run.

The first engine that a run accepts leaves its answers to the test prompts in Redis; each later one
is compared with them before it leases anything of that run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from consumer.engine.honesty import judge, pack, unpack
from consumer.engine.life import UnfitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.queue.run_state import Runs
    from common.records import RunInfo
    from consumer.engine.honesty import Honesty, Probe

log = structlog.get_logger()


class Agreement:
    """Compares this consumer's engine with the runs' references. No check, no objection."""

    def __init__(self, runs: Runs, honesty: Honesty | None) -> None:
        self._runs = runs
        self._honesty = honesty
        self._known: dict[tuple[str, str], str] = {}

    async def objection(self, info: RunInfo) -> str:
        """Return why this engine must not serve a run; empty when it may.

        The first time for each run it is looked up, or left there, and an objection is said.

        Raises:
            QueueError: Redis did not answer.
        """
        if self._honesty is None or not self._honesty.record:
            return ""
        key = (info.run, info.epoch)
        if key not in self._known:
            reference = unpack(await self._runs.reference(info.run, pack(self._honesty.record)))
            why = self._known[key] = _difference(self._honesty, reference)
            if why:
                log.error("run left alone: this engine answers otherwise", run=info.run, why=why)
        return self._known[key]


def _difference(honesty: Honesty, reference: Sequence[Probe]) -> str:
    try:
        judge(reference, honesty.record, 2 * honesty.tolerance)
    except UnfitError as error:
        return error.why
    return ""
