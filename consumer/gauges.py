"""The figures that a consumer shows: where it runs, and how fast."""

from __future__ import annotations

import os
import socket
from collections import deque
from dataclasses import dataclass, field

WINDOW_SECONDS = 15.0


@dataclass(slots=True)
class Rates:
    """Tokens per second over the last seconds, from the engine's own counter."""

    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def restart(self) -> None:
        """Begin anew: another engine counts from zero."""
        self._samples.clear()

    def sample(self, now: float, generated_tokens: int) -> None:
        """Take one reading of the engine's counter."""
        if self._samples and generated_tokens < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, generated_tokens))
        while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_SECONDS:
            self._samples.popleft()

    def nothing(self, now: float) -> None:
        """There was no reading: after a while without any, there is no rate to tell."""
        if self._samples and now - self._samples[-1][0] > WINDOW_SECONDS:
            self._samples.clear()

    @property
    def tokens_per_second(self) -> float:
        """The rate over the window, 0 before there are two readings."""
        if len(self._samples) < 2:
            return 0.0
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / max(ended - began, 1e-6)

    @staticmethod
    def place(gpu: int | None) -> dict[str, str]:
        """Return where this consumer runs."""
        return {
            "host": socket.gethostname(),
            "pid": str(os.getpid()),
            "gpu": "" if gpu is None else str(gpu),
        }
