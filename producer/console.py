"""The one place where the producer's commands speak: data to stdout, messages to stderr."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Console:
    """How a command speaks: ``--json`` gives one JSON object on stdout, ``--quiet`` no words."""

    json: bool = False
    quiet: bool = False

    def result(self, text: str, data: dict[str, Any]) -> None:
        """Give a command's answer, in words or as JSON."""
        if self.json:
            from common.codec import dumps  # noqa: PLC0415 - keeps zstd out of --help

            click.echo(dumps(data).decode())
        elif not self.quiet:
            click.echo(text)

    def say(self, line: str) -> None:
        """Say something beside the answer."""
        if not self.quiet:
            click.echo(line, err=True)

    def warn(self, line: str) -> None:
        """Say something that must not be missed, ``--quiet`` or not."""
        click.echo(line, err=True)

    @contextmanager
    def progress(self, label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show a bar while something lasts, if a person is looking; gives its update function."""
        if self.quiet or self.json or not sys.stderr.isatty():
            yield lambda _done: None
            return
        from rich.console import Console as Terminal  # noqa: PLC0415 - keeps rich out of --help
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Terminal(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda done: bar.update(task, completed=done)
