"""Looks at a card every few seconds from a thread of its own, since a driver may never answer."""

from __future__ import annotations

import threading
import time

from consumer.engine.gpu_health import GpuHealth, GpuProbe

LOOK_SECONDS = 5.0
SILENT_SECONDS = 30.0  # a driver that takes longer for one look does not answer
SILENT = "it does not answer"
LOST_LOOKS = 3  # so many looks in a row have to say that a card is gone, or so many be missed


class GpuWatch:
    """Holds the newest look at a card. Costs nothing where there is no card or no NVML.

    The thread is a daemon: a call that never returns holds up neither the event loop nor the end
    of the process.
    """

    def __init__(self, gpu: int | None, *, look_seconds: float | None = None) -> None:
        self._probe = GpuProbe(gpu)
        self._gpu = gpu
        self._pause = LOOK_SECONDS if look_seconds is None else look_seconds
        self._over = threading.Event()
        self._wake = threading.Event()  # from the pause between two looks
        self._begun = self._ended = 0  # looks
        self._blind = False  # there is nothing to see here
        self._seen: GpuHealth | None = None
        self._lost_looks = 0  # in a row
        self._asked_at: float | None = None  # of the look under way
        self._thread: threading.Thread | None = None

    @property
    def health(self) -> GpuHealth | None:
        """How the card was at the last look; None where nobody can say.

        A driver that does not answer makes a card that is not up.
        """
        if self._silent_seconds() > SILENT_SECONDS:
            return GpuHealth(up=False, lost=SILENT)
        return self._seen

    @property
    def name(self) -> str:
        """Which card it is, in words."""
        return self._probe.name

    @property
    def lost(self) -> str:
        """How a card is lost that was so at several looks in a row, in words; else "".

        A look that never ends is followed by no other: there the silence itself is measured.
        """
        if self._silent_seconds() > SILENT_SECONDS * LOST_LOOKS:
            return SILENT
        return self.suspicion if self._lost_looks >= LOST_LOOKS else ""

    @property
    def suspicion(self) -> str:
        """The same after the newest look alone."""
        health = self.health
        return health.lost if health else ""

    def start(self) -> None:
        """Begin to look; no error where there is nothing to see. Safe to call again."""
        if self._gpu is None or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)
        self._thread.start()

    def look_again(self) -> int:
        """Look at once, or after the look that is under way; return the number of that look."""
        number = self._begun + 1
        self._wake.set()
        return number

    def has_looked(self, number: int) -> bool:
        """Return whether the look of that number is over; also where there will be none."""
        return self._thread is None or self._blind or self._ended >= number

    def stop(self) -> None:
        """Look no more. Does not wait for a look that is under way."""
        self._over.set()
        self._wake.set()

    def _silent_seconds(self) -> float:
        """How long the look under way has taken by now."""
        asked_at = self._asked_at  # once: the thread changes it
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def _run(self) -> None:
        while not self._over.is_set():
            self._wake.clear()
            self._begun += 1
            self._asked_at = time.monotonic()
            seen = self._probe.look()
            self._lost_looks = self._lost_looks + 1 if seen is not None and seen.lost else 0
            self._seen, self._asked_at = seen, None
            self._ended = self._begun
            if seen is None:  # no NVML here, and there will be none
                self._blind = True
                return
            self._wake.wait(self._pause)
