"""A consumer's figures for Prometheus, on loopback. No prompt text, no ids."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from common.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

NUMBERS = {
    "in_flight": "Items being generated",
    "window": "Items that may be in flight",
    "max_running": "Requests that the engine runs at once",
    "tokens_per_second": "Tokens generated a second, over the last seconds",
    "completed": "Items that the queue took a result of",
    "failed": "Tries that were charged",
    "undelivered": "Outcomes that the queue has not taken yet",
    "engine_starts": "Starts of the engine",
}


class _Gauges:
    """Reads the figures when Prometheus asks."""

    def __init__(self, read: Callable[[], Mapping[str, str]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - only when asked for

        values = self._read()
        labels = ["gpu", "engine", "model"]
        for name, help_text in NUMBERS.items():
            family = GaugeMetricFamily(f"genq_consumer_{name}", help_text, labels=labels)
            family.add_metric([values[label] for label in labels], float(values[name]))
            yield family


@contextmanager
def serve_metrics(port: int | None, read: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Answer /metrics on loopback meanwhile; no port, no endpoint.

    Raises:
        UsageError: the port is taken.
    """
    if port is None:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - see above

    registry = CollectorRegistry()
    registry.register(_Gauges(read))
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise UsageError(
            f"Port {port} for metrics is taken.",
            why=str(error),
            fix="Choose another --metrics-port.",
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=2.0)
