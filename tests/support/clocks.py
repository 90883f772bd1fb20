"""Wrong clocks for real processes, by libfaketime. Time passes as it does; it is another time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.debian import found_or_installed

PACKAGE = "libfaketime"


def _library() -> Path | None:
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def has_libfaketime() -> bool:
    return found_or_installed(PACKAGE, _library) is not None


def wrong_clock(offset: str) -> dict[str, str]:
    """Return the variables of a process whose clocks are off by ``offset``, such as "-1d".

    Its monotonic clock is off, too, by the same at all times, so that nothing in it can tell; to
    leave that one alone (as :class:`JumpingClock` must) breaks the sleep of Python's threads.
    Skips the test where libfaketime cannot be had.
    """
    library = found_or_installed(PACKAGE, _library)
    if library is None:
        pytest.skip(f"no {PACKAGE} here: apt-get install {PACKAGE}")
    # Times of files stay as they are, or Python would take all compiled modules for outdated, and
    # compile them again into everybody's cache.
    return {"LD_PRELOAD": str(library), "FAKETIME": offset, "NO_FAKE_STAT": "1"}


class JumpingClock:
    """The wall clock of a server that was started with :attr:`env`: it jumps when told to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        variables = wrong_clock("+0")
        del variables["FAKETIME"]  # it would win over the file
        variables |= {"FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1"}
        # The name has changed between releases.
        names = ("DONT_FAKE_MONOTONIC", "FAKETIME_DONT_FAKE_MONOTONIC")
        self.env = variables | dict.fromkeys(names, "1")
        self.jump("+0")

    def jump(self, offset: str) -> None:
        """Let the clock be off by ``offset`` from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(offset + "\n")
        new.replace(self._file)
