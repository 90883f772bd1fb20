"""How fast an engine decodes, by its own counter: the same measure whoever asks it."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SAMPLE_SECONDS = 0.2
DECODED = re.compile(rb'realtime_tokens_total\{[^}]*mode="decode"[^}]*\} ([0-9.e+]+)')
LOW, HIGH = 0.1, 0.9  # ramp and drain are left out of the steady rate
_ASK_SECONDS = 5.0

Moves = list[tuple[float, float]]  # time (monotonic), tokens so far


@dataclass(frozen=True)
class Door:
    """Where an engine answers."""

    url: str
    key: str

    def get(self, path: str, *, method: str = "GET") -> bytes:
        """Raises OSError where nothing answers."""
        request = urllib.request.Request(
            f"{self.url}{path}", headers={"Authorization": f"Bearer {self.key}"}, method=method
        )
        with urllib.request.urlopen(request, timeout=_ASK_SECONDS) as reply:
            return bytes(reply.read())

    def decoded(self) -> float:
        """Tokens decoded since its start. Raises OSError where nothing answers."""
        return sum(float(number) for number in DECODED.findall(self.get("/metrics")))


class Counter:
    """Samples the counters of engines, until :meth:`stop`. An engine may come and go."""

    def __init__(self, *doors: Callable[[], Door | None]) -> None:
        self._doors = doors
        self._stop = threading.Event()
        self._first = [threading.Event() for _ in doors]
        self.moves: list[Moves] = [[] for _ in doors]
        self._threads = [
            threading.Thread(target=self._sample, args=three, daemon=True)
            for three in zip(doors, self.moves, self._first, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> list[Moves]:
        """End; return what was seen of each engine."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.moves

    def wait_first(self) -> None:
        """Return once each engine has been read: before that nothing may move."""
        for first in self._first:
            assert first.wait(_ASK_SECONDS), "an engine's metrics cannot be read"

    def _sample(
        self, find: Callable[[], Door | None], moves: Moves, first: threading.Event
    ) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            with contextlib.suppress(OSError):
                if (door := find()) is not None:
                    tokens = door.decoded()
                    moves.append((time.monotonic(), tokens))
                    first.set()


def steady_rate(many: Sequence[Moves]) -> float:
    """Tokens a second of all together, while the middle four fifths of them were decoded."""
    whole = [moves[-1][1] - moves[0][1] for moves in many]
    begin = max(_when(moves, LOW * total) for moves, total in zip(many, whole, strict=True))
    end = min(_when(moves, HIGH * total) for moves, total in zip(many, whole, strict=True))
    return sum(_at(moves, end) - _at(moves, begin) for moves in many) / (end - begin)


def _when(moves: Moves, tokens: float) -> float:
    """When so many tokens were decoded since the first sample, between samples by a line."""
    base = moves[0][1]
    for (t0, n0), (t1, n1) in itertools.pairwise(moves):
        if n1 - base >= tokens and n1 > n0:
            return t0 + (t1 - t0) * max(0.0, tokens - (n0 - base)) / (n1 - n0)
    return moves[-1][0]


def _at(moves: Moves, when: float) -> float:
    """How many tokens were decoded at a moment, between samples by a line."""
    for (t0, n0), (t1, n1) in itertools.pairwise(moves):
        if t0 <= when <= t1:
            return n0 + (n1 - n0) * (when - t0) / (t1 - t0)
    return moves[-1][1]
