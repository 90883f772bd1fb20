"""Reading single figures out of Prometheus' text format, without building a tree of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def samples(text: str, name: str) -> Iterator[tuple[str, float]]:
    """Yield labels (raw, between the braces) and value of each sample called ``name``."""
    for line in text.splitlines():
        if not line.startswith(name):
            continue
        rest = line[len(name) :]
        if rest[:1] not in ("{", " "):
            continue  # a longer name
        labels, _, value = rest.rpartition(" ")
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            yield labels.strip("{} "), number


def total(text: str, name: str, *needs: str) -> float | None:
    """Return the sum of a metric's samples whose labels hold all of ``needs``; None if none do."""
    values = [
        value for labels, value in samples(text, name) if all(need in labels for need in needs)
    ]
    return math.fsum(values) if values else None
