"""A round as people see it: a live table on a terminal, a line an event elsewhere; on stderr."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from consumer.tuning.results import Outcome
from consumer.tuning.space import describe

if TYPE_CHECKING:
    from consumer.tuning.results import Trial
    from consumer.tuning.space import Setting
    from consumer.tuning.steady import Meter

_ROWS = 20
_REFRESH = 2  # a second


class LiveBoard:
    """Shows a round. Use as a context; :meth:`seen` takes what the trial under way says."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._rows: list[tuple[str, ...]] = []
        self._now: tuple[str, str] | None = None
        self._state = ""
        self._ends = 0.0
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._table, console=self._console, refresh_per_second=_REFRESH
            )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the table as it is; safe to call again."""
        self._now = None
        if self._live:
            self._live.stop()

    def begin(self, label: str, setting: Setting, left_seconds: float) -> None:
        """See :class:`consumer.tuning.round.Board`."""
        what = " ".join(setting.flags) or "the engine's own"
        self._now = (label, describe(setting.point) or what)
        self._state, self._ends = "starting", time.monotonic() + left_seconds
        bound = f", at most {setting.predicted:,.0f} tokens/s" if setting.predicted else ""
        self._line(f"{label}: {what}{bound}; {left_seconds / 60:.1f} min left")

    def seen(self, state: str, meter: Meter | None) -> None:
        """Take how the trial under way does."""
        rate = f" {meter.rate:,.0f} tokens/s" if meter is not None and meter.rate else ""
        self._state = state + rate

    def end(self, label: str, trial: Trial, best: float) -> None:
        """See :class:`consumer.tuning.round.Board`."""
        good = trial.outcome in (Outcome.OK, Outcome.CUT)
        rate = f"{trial.tokens_per_second:,.0f}" if good else "-"
        mark = " *" if good and trial.tokens_per_second >= best else ""
        running = f"{trial.running:,.0f}/{trial.max_running:,}" if trial.max_running else "-"
        what = self._now[1] if self._now else ""
        self._rows.append(
            (label, rate + mark, running, f"{trial.seconds:.0f}", trial.outcome, what)
        )
        self._now = None
        why = f": {trial.why}" if trial.why else ""
        self._line(
            f"{label}: {trial.outcome}{why}; {rate} tokens/s{mark}, {running} running,"
            f" start {trial.start_seconds:.0f} s, {trial.seconds:.0f} s in all"
        )

    def say(self, text: str) -> None:
        """See :class:`consumer.tuning.round.Board`."""
        self._line(text)

    def _line(self, text: str) -> None:
        if self._live is None:
            click.echo(text, err=True)

    def _table(self) -> Table:
        left = max(0.0, self._ends - time.monotonic())
        table = Table(title=f"tuning, {left / 60:.1f} min left", expand=False)
        for name in ("", "tokens/s", "running", "s", "", "setting"):
            table.add_column(
                name, justify="right" if name in ("tokens/s", "running", "s") else "left"
            )
        for row in self._rows[-_ROWS:]:
            table.add_row(*row)
        if self._now:
            table.add_row(self._now[0], "", "", "", self._state, self._now[1])
        return table
