"""`gen-producer report`: gathers, makes the report, and writes it as a page or as JSON."""

from __future__ import annotations

import os
import shlex
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.errors import Exit, UsageError
from common.ids import run_name
from common.s3 import open_store
from producer.report.gather import Gathered, gather
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
        VerifyError: a part is damaged, or was deleted from among others.
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
    code = _code(found)
    if out is None and console.json:
        console.result("", asdict(report))
        return code
    from producer.report.page import page  # noqa: PLC0415 - jinja2 and matplotlib

    html = page(report)
    if out == _STDOUT:
        click.echo(html)
        return code
    path = Path(out or f"{name}-report.html")
    _write(path, html)
    console.result(f"{summary(report)}\nThe page: {path}", asdict(report))
    return code


def _code(found: Gathered) -> Exit:
    """Return how the command ends: a report of what has lost something is one, and says so."""
    whole = not found.lost and not any(child.lost for child in found.children)
    return Exit.DONE if whole else Exit.VERIFY


def _another_place(path: Path) -> str:
    if not path.parent.exists():
        return f"mkdir -p {shlex.quote(str(path.parent))}    (or --out - for stdout)"
    return "Name another place: --out FILE.html    (or --out - for stdout)"


def _write(path: Path, text: str) -> None:
    """Put a file in place whole, over an earlier one. Raises UsageError if it cannot be.

    A link stays and what it names is written; a pipe or a device is written into.
    """
    draft = ""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, encoding="utf-8")
            return
        path = path.resolve()
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
            fix=_another_place(path),
        ) from error
