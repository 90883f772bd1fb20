"""Pages for Prometheus: fetched, and parsed as Prometheus' own client does."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common.telemetry.catalogue import Metric


def fetch(port: int, path: str = "/metrics", host: str = "127.0.0.1") -> tuple[int, str]:
    asking = http.client.HTTPConnection(host, port, timeout=30)
    try:
        asking.request("GET", path)
        answer = asking.getresponse()
        return answer.status, answer.read().decode()
    finally:
        asking.close()


class Page:
    """What a page says: ``page("name", run="one")`` is a value, None where there is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float | None:
        found = [s.value for s in self.samples if s.name == name and s.labels == labels]
        assert len(found) <= 1, (name, labels)
        return found[0] if found else None

    def labels(self, name: str) -> list[dict[str, str]]:
        return [sample.labels for sample in self.samples if sample.name == name]

    def agrees_with(self, catalogue: Iterable[Metric]) -> None:
        """Check that the page has just the catalogue's metrics, each with its kind and help."""
        said = {
            (name + "_total" if family.type == "counter" else name): (
                family.type,
                family.documentation,
            )
            for name, family in self.families.items()
        }
        assert said == {metric.name: (metric.kind, metric.help) for metric in catalogue}
        known = {metric.name: set(metric.labels) for metric in catalogue}
        for sample in self.samples:
            base = next(n for n in (sample.name, sample.name.rpartition("_")[0]) if n in known)
            assert set(sample.labels) - {"le"} == known[base], sample
