"""Times in buckets of 2 %: as many as come, in little memory, and joined across processes."""

from __future__ import annotations

import math
from collections import Counter

_STEP = math.log(1.02)
_LEAST_SECONDS = 1e-6


class Histogram:
    def __init__(self, buckets: dict[str, int] | None = None) -> None:
        self._buckets = Counter({int(name): count for name, count in (buckets or {}).items()})

    def add(self, seconds: float) -> None:
        self._buckets[int(math.log(max(seconds, _LEAST_SECONDS)) / _STEP)] += 1

    def join(self, other: Histogram) -> None:
        self._buckets.update(other._buckets)

    def as_data(self) -> dict[str, int]:
        return {str(bucket): count for bucket, count in self._buckets.items()}

    def __len__(self) -> int:
        return self._buckets.total()

    def quantile(self, share: float) -> float:
        """Seconds that so large a share stays below; to 2 %."""
        left = share * len(self)
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return math.exp((bucket + 0.5) * _STEP)
        return 0.0
