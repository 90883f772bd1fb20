"""`gen-producer report`: gathers, makes the report, and writes it as a page or as JSON."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.errors import Exit, UsageError
from common.ids import run_name
from common.s3 import open_store
from producer.report.gather import gather
from producer.report.make import make_report
from producer.report.words import summary

if TYPE_CHECKING:
    from common.settings import Settings
    from producer.console import Console

_STDOUT = "-"


def run_report(
    run: str,
    settings: Settings,
    console: Console,
    *,
    out: str | None,
    price: float | None,
    examples: bool,
) -> int:
    """Make the report of a run; the page goes to ``out``, JSON to stdout.

    Raises:
        UsageError: storage has no such run.
        StoreError: it could not be asked.
        UsageError: the page cannot be drawn or written.
        VerifyError: a part is damaged.
    """
    name = run_name(run)
    if console.json and out == _STDOUT:
        raise UsageError(
            "The page and the JSON cannot both go to stdout.",
            why="--json and --out - were given.",
            fix=f"gen-producer report {name} --json --out {name}-report.html",
        )
    store = open_store(settings)
    with console.progress(f"Reading {name}") as show:
        found = gather(store, name, settings, texts=examples, counted=lambda done, _all: show(done))
    report = make_report(found, store_url=store.url, price=price)
    if out is None and console.json:
        console.result("", asdict(report))
        return Exit.DONE
    from producer.report.page import page  # noqa: PLC0415 - jinja2 and matplotlib

    html = page(report)
    if out == _STDOUT:
        click.echo(html)
        return Exit.DONE
    path = Path(out or f"{name}-report.html")
    _write(path, html)
    console.result(f"{summary(report)}\nThe page: {path}", asdict(report))
    return Exit.DONE


def _write(path: Path, text: str) -> None:
    """Put a file in place whole, over an earlier one. Raises UsageError if it cannot be."""
    draft = ""
    try:
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(draft).chmod(0o666 & ~mask)
        Path(draft).replace(path)
    except OSError as error:
        if draft:
            with suppress(OSError):
                Path(draft).unlink()
        raise UsageError(
            f"{path} cannot be written.",
            why=f"{error.strerror or error}.",
            fix="Name another place: --out FILE.html    (or --out - for stdout)",
        ) from error
