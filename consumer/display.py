"""What a consumer shows: RQ's worker record, and its figures for the status screen."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from common.errors import QueueError
from common.ids import WorkerName
from consumer.engine.states import EngineState
from consumer.figures import card_figures, engine_figures
from consumer.gauges import Rates
from consumer.reporter import BEAT_SECONDS

if TYPE_CHECKING:
    from common.ids import RunName
    from common.queue.run_state import Runs
    from consumer.engine.supervisor import Supervisor
    from consumer.generation.pump import Pump
    from consumer.leases.catalogue import Catalogue
    from consumer.leases.outbox import Outbox
    from consumer.reporter import Reporter

GAUGE_SECONDS = 1.0
GAUGE_TTL_SECONDS = 15  # a consumer that shows nothing for so long counts as silent
FATAL_SECONDS = 600  # that an engine was given up is shown for so long after its consumer's end
LAST_LOOK_SECONDS = 5.0  # at the end, for what Redis is asked and told of such an engine

log = structlog.get_logger()


@dataclass(slots=True)
class Once:
    """Says a trouble once, and once that it is over."""

    what: str
    _on: bool = field(default=False)

    def trouble(self, error: Exception) -> None:
        """Note that it happened."""
        if not self._on:
            log.warning("in trouble, trying again", what=self.what, why=str(error))
        self._on = True

    def over(self) -> None:
        """Note that it went well."""
        if self._on:
            log.info("trouble is over", what=self.what)
        self._on = False


@dataclass(slots=True)
class Display:
    """Reports a consumer's state every few seconds. One task runs :meth:`run`."""

    runs: Runs
    reporter: Reporter
    supervisor: Supervisor
    catalogue: Catalogue
    pump: Pump
    outbox: Outbox
    rates: Rates = field(default_factory=Rates)
    _since: float = field(default_factory=time.monotonic)

    @property
    def state(self) -> str:
        """RQ's word for what the worker does."""
        if self.catalogue.suspended:
            return "suspended"
        if self.pump.in_flight:
            return "busy"
        return "idle" if self.pump.ready else "started"

    async def run(self) -> None:
        """Report, for ever. Never raises for a fault of Redis."""
        trouble = Once("gauges cannot be written")
        beat_at = 0.0
        shown: tuple[str, list[RunName]] | None = None
        while True:
            now = (self.state, self.catalogue.names(self.supervisor.facts))
            if now != shown or time.monotonic() >= beat_at:
                await self.report(state=now[0])
                beat_at, shown = time.monotonic() + BEAT_SECONDS, now
            try:
                name = WorkerName(self.reporter.name)
                await self.runs.set_gauges(name, self.gauges(), GAUGE_TTL_SECONDS)
                trouble.over()
            except QueueError as error:
                trouble.trouble(error)
            await asyncio.sleep(GAUGE_SECONDS)

    async def report(self, *, state: str) -> None:
        """Renew RQ's record of the worker."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        await self.reporter.beat(
            state=state,
            queues=self.catalogue.names(self.supervisor.facts),
            seconds=seconds if state == "busy" else 0.0,
        )

    async def close(self, *, fatal: bool) -> None:
        """Take leave. Where the engine was given up, that is shown for a while; never raises.

        Nothing else in Redis says how such a consumer ended, and it ends at once.
        """
        if fatal:
            with suppress(QueueError, TimeoutError):
                await asyncio.wait_for(self._show_fatal(), LAST_LOOK_SECONDS)
        await self.report(state="stopped")
        await self.reporter.close(record_seconds=FATAL_SECONDS if fatal else None)

    async def _show_fatal(self) -> None:
        await self.catalogue.look()  # an engine may fail before the first one
        self.rates.restart()
        last = {**self.gauges(), "engine": str(EngineState.FATAL), "window": "0"}
        await self.runs.set_gauges(
            WorkerName(self.reporter.name), last, FATAL_SECONDS + GAUGE_TTL_SECONDS
        )

    def gauges(self) -> dict[str, str]:
        """Return this consumer's figures for the status screen."""
        spec, facts, tally = self.supervisor.spec, self.supervisor.facts, self.outbox.tally
        return {
            **self.rates.place(spec.gpu),
            "engine": str(self.supervisor.state),
            "engine_starts": str(self.supervisor.incarnation),
            "engine_lowered": "; ".join(self.supervisor.lowered),
            "model": spec.model,
            "in_flight": str(self.pump.in_flight),
            "window": str(self.pump.window.size if self.pump.ready else 0),
            "tokens_per_second": f"{self.rates.tokens_per_second:.1f}",
            "completed": str(tally.succeeded),
            "failed": str(tally.failed),
            "undelivered": str(len(self.outbox)),
            "waiting_for": self.catalogue.closed if self.pump.ready else "engine",
            "refused": ",".join(sorted(self.catalogue.refused)),
            "unequal": ",".join(sorted(self.catalogue.unequal)),
            **engine_figures(spec, facts, self.supervisor.load),
            **card_figures(self.supervisor.card.health),
        }
