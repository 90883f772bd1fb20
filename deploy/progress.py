"""How a run on the local stack is shown: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from common.audit import RunCounts

RATE_SECONDS = 20.0  # long enough for a steady figure, short enough to follow
PLAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a run, as it is shown."""

    total: int
    answered: int  # generated, stored or given up
    stored: int
    dead: int
    per_second: float
    tokens_per_second: float
    eta_seconds: float | None
    word: str  # what the run is doing


class Rates:
    """Turns counts into rates over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def look(self, counts: RunCounts, *, now: float) -> Look:
        """Return what to show for ``counts``, taken at ``now`` (monotonic s)."""
        answered = counts.generated + counts.committed + counts.dead
        self._seen.append((now, answered, counts.completion_tokens))
        while now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        then, answered_then, tokens_then = self._seen[0]
        span = max(now - then, 1e-9)
        rate = (answered - answered_then) / span
        left = counts.total - answered
        return Look(
            total=counts.total,
            answered=answered,
            stored=counts.committed,
            dead=counts.dead,
            per_second=rate,
            tokens_per_second=(counts.completion_tokens - tokens_then) / span,
            eta_seconds=left / rate if rate > 0 else None,
            word=_word(counts, answered),
        )


def _word(counts: RunCounts, answered: int) -> str:
    if counts.state in ("held", "paused", "cancelled"):
        return counts.state
    if answered < counts.total:
        return "generating" if answered or counts.leased else "starting the model"
    return "storing" if counts.committed + counts.dead < counts.total else "finishing"


def duration(seconds: float | None) -> str:
    """Return ``m:ss`` or ``h:mm:ss``; a dash where nothing is known."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def summary(look: Look) -> str:
    """Return one plain line on a run."""
    dead = f", {look.dead} given up" if look.dead else ""
    return (
        f"{look.word}: {look.answered} of {look.total} answered, {look.stored} stored{dead}, "
        f"{look.per_second:.1f}/s, {look.tokens_per_second:.0f} tokens/s, "
        f"ETA {duration(look.eta_seconds)}"
    )


class Screen(Protocol):
    """Where progress is shown."""

    def show(self, look: Look) -> None:
        """Show a look at the run."""

    def say(self, text: str) -> None:
        """Print lines that stay."""

    def close(self) -> None:
        """Leave the screen as it is."""


class LiveScreen:
    """A bar that moves, on stderr."""

    def __init__(self, run: str, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[word]:<18}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
            refresh_per_second=4,
        )
        self._task = self._progress.add_task(run, total=None, word="starting", figures="")
        self._progress.start()

    def show(self, look: Look) -> None:
        """See :class:`Screen`."""
        dead = f" [red]{look.dead} given up[/red]" if look.dead else ""
        figures = (
            f"{look.stored} stored{dead}  {look.per_second:.1f}/s  "
            f"{look.tokens_per_second:.0f} tok/s  ETA {duration(look.eta_seconds)}"
        )
        self._progress.update(
            self._task,
            total=look.total,
            completed=look.answered,
            word=look.word,
            figures=figures,
        )

    def say(self, text: str) -> None:
        """See :class:`Screen`."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """See :class:`Screen`."""
        self._progress.stop()


class PlainScreen:
    """A line now and then, on stderr; for logs."""

    def __init__(self) -> None:
        self._said_at = -PLAIN_SECONDS
        self._word = ""

    def show(self, look: Look) -> None:
        """See :class:`Screen`."""
        now = time.monotonic()
        if look.word != self._word or now - self._said_at >= PLAIN_SECONDS:
            self._said_at, self._word = now, look.word
            self.say(summary(look))

    def say(self, text: str) -> None:
        """See :class:`Screen`."""
        click.echo(text, err=True)

    def close(self) -> None:
        """See :class:`Screen`."""


def screen(run: str) -> Screen:
    """Return a live screen if stderr is a terminal that can show one, else a plain one."""
    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(run, console)
    return PlainScreen()
