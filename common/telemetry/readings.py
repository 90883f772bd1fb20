"""Values of one service's metrics at one moment, in the form that Prometheus' client takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client import Metric as Family

    from common.telemetry.catalogue import Metric

Labels = tuple[str, ...]


class Readings:
    """Filled once for each scrape. Only metrics of the catalogue, with just their labels, fit."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in self._metrics}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}

    def set(self, name: str, value: float | None, **labels: str) -> None:
        """Give a metric its value; None leaves it out.

        Raises:
            KeyError: the catalogue has no such metric, or with other labels.
        """
        if value is not None:
            self._values[name][self._key(name, labels)] = float(value)

    def add(self, name: str, value: float, **labels: str) -> None:
        """Add to what the metric has; raises as :meth:`set`."""
        values, key = self._values[name], self._key(name, labels)
        values[key] = values.get(key, 0.0) + value

    def one_of(self, name: str, now: str, known: Sequence[str], **labels: str) -> None:
        """Set a metric of the last label to 1 where it is ``now`` and to 0 for the others known."""
        last = self._metrics[name].labels[-1]
        for value in dict.fromkeys((*known, now)):
            self.add(name, float(value == now), **labels, **{last: value})

    def histogram(self, name: str, histogram: Histogram, **labels: str) -> None:
        """Give a histogram its counts; raises as :meth:`set`."""
        self._histograms.setdefault(name, {})[self._key(name, labels)] = histogram

    def _key(self, name: str, labels: Mapping[str, str]) -> Labels:
        wanted = self._metrics[name].labels
        if set(labels) != set(wanted):
            raise KeyError(f"{name} has the labels {wanted}, not {tuple(labels)}")
        return tuple(labels[label] for label in wanted)

    def collect(self) -> Iterator[Family]:
        """Yield every family of the catalogue, those without a value too: their help is shown."""
        from prometheus_client.core import (  # noqa: PLC0415 - only where somebody asks
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        for metric in self._metrics.values():
            if metric.kind == "histogram":
                buckets = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                for key, counted in self._histograms.get(metric.name, {}).items():
                    buckets.add_metric(key, counted.cumulative(), counted.sum)
                yield buckets
                continue
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for key, value in self._values[metric.name].items():
                family.add_metric(key, value)
            yield family


class Histogram:
    """Counts observations by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        place = next((n for n, bound in enumerate(self._bounds) if value <= bound), None)
        self._counts[-1 if place is None else place] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return how many were at or below each bound, the last without one."""
        total, pairs = 0, []
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            pairs.append((str(bound), float(total)))
        return pairs
