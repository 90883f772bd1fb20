"""Where `status --watch` shows its answers: in place on a terminal, block by block elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from producer.status.view import LINES, MAX_WIDTH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.live import Live
    from rich.text import Text

    from producer.console import Console

# The state word at the head of a screen, and how it is coloured; the word says it as well.
_COLOURS = {
    "generating": "green",
    "done": "green",
    "finishing": "green",
    "starting": "yellow",
    "waiting": "yellow",
    "closed": "yellow",
    "loading": "yellow",
    "paused": "yellow",
    "suspended": "yellow",
    "held": "red",
    "stalled": "red",
    "damaged": "red",
    "cancelled": "red",
}


class Screen(Protocol):
    """What an answer is shown on."""

    @property
    def rows(self) -> int | None:
        """How many workers there is room for; None: for all."""

    def show(self, text: str, data: dict[str, Any]) -> None:
        """Show an answer."""

    def trouble(self, text: str) -> None:
        """Say why there is no new answer."""


@contextmanager
def open_screen(console: Console, seconds: float) -> Iterator[Screen]:
    """Give the screen that fits: a live one on a terminal that can move its cursor."""
    if console.json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield Blocks(console)
        return
    from rich.console import Console as Terminal  # noqa: PLC0415 - only where it is looked at
    from rich.live import Live  # noqa: PLC0415

    terminal = Terminal(highlight=False)
    with Live(console=terminal, auto_refresh=False, vertical_overflow="visible") as live:
        yield Frames(live, seconds)


class Blocks:
    """One answer after another, each with its time; with ``--json`` one object a line."""

    rows = None

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, text: str, data: dict[str, Any]) -> None:
        """See :class:`Screen`."""
        self._console.result(f"{_now()}\n{text}\n", data)
        sys.stdout.flush()

    def trouble(self, text: str) -> None:
        """See :class:`Screen`."""
        self._console.warn(f"{_now()}  {text}")


class Frames:
    """One answer in the place of the one before."""

    def __init__(self, live: Live, seconds: float) -> None:
        self._live = live
        self._every = f"every {seconds:g} s; Ctrl-C ends this only"
        self._last = ""
        self._at = _now()

    @property
    def rows(self) -> int:
        """See :class:`Screen`."""
        columns, lines = shutil.get_terminal_size()
        above = LINES if columns >= MAX_WIDTH else 2 * LINES  # narrow ones go on in a second line
        return lines - above - 2  # for the foot and the cursor

    def show(self, text: str, data: dict[str, Any]) -> None:
        """See :class:`Screen`."""
        del data
        self._last, self._at = text, _now()
        self._draw(f"{self._at}, {self._every}")

    def trouble(self, text: str) -> None:
        """See :class:`Screen`."""
        self._draw(f"{text} The above is of {self._at}." if self._last else text)

    def _draw(self, foot: str) -> None:
        text = coloured(self._last)
        text.append(f"\n{foot}" if self._last else foot, style="dim")
        self._live.update(text, refresh=True)


def coloured(text: str) -> Text:
    """Return a screen with its words coloured that matter most. Rich leaves colours out itself."""
    from rich.text import Text  # noqa: PLC0415 - only where it is looked at

    shown = Text(text)
    head = text.split("\n", 1)[0]
    word = head.partition("  ")[2].partition(":")[0]
    colour = _COLOURS.get(word.partition(" ")[0])
    if colour:
        start = len(head.partition("  ")[0]) + 2
        shown.stylize(f"bold {colour}", start, start + len(word))
    shown.highlight_regex(r"<- .*|GPU (LOST|slowed|failing).*", "yellow")
    shown.highlight_regex(r"(?m)^Next: .*", "bold")
    return shown


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}"
