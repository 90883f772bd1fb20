"""A sink's figures for Prometheus. No prompt text, no ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.cliutil import genq_version
from common.telemetry.catalogue import SINK
from common.telemetry.readings import Readings
from consumer.sink.figures import SERVICES

if TYPE_CHECKING:
    from consumer.sink.figures import RunFigures
    from consumer.sink.run import RunSink
    from consumer.sink.service import SinkService
    from consumer.sink.tools import Tools


class SinkMetrics:
    """Reads one sink whenever Prometheus asks, on the asking thread; waits for nothing."""

    def __init__(self, service: SinkService, tools: Tools) -> None:
        self._service = service
        self._tools = tools
        self._version = genq_version()

    def read(self) -> Readings:
        """Return every figure as it is now."""
        read, tools = Readings(SINK), self._tools
        read.set("genq_sink_info", 1, format=tools.suffix, version=self._version)
        for name in SERVICES:
            failed = tools.figures.failed_calls[name]
            read.set("genq_sink_failed_calls_total", failed, service=name)
            read.set("genq_sink_away", tools.figures.away[name] > 0, service=name)
        for sink in self._service.sinks:
            _in_hand(read, sink)
            _done(read, sink.run, tools.figures.of(sink.run))
        return read


def _in_hand(read: Readings, sink: RunSink) -> None:
    read.set("genq_sink_batch_items", sink.in_hand, run=sink.run)
    read.set("genq_sink_batch_age_seconds", sink.age_seconds, run=sink.run)
    read.set("genq_sink_run_broken", sink.broken is not None, run=sink.run)


def _done(read: Readings, run: str, figures: RunFigures) -> None:
    read.set("genq_sink_parts_total", figures.parts, run=run)
    read.set("genq_sink_committed_items_total", figures.committed, run=run)
    read.set("genq_sink_written_bytes_total", figures.bytes, run=run)
    read.set("genq_sink_repeated_results_total", figures.repeated, run=run)
    read.set("genq_sink_rejected_results_total", figures.rejected, run=run)
    read.set("genq_sink_last_commit_timestamp_seconds", figures.committed_at, run=run)
    read.histogram("genq_sink_commit_seconds", figures.seconds, run=run)
