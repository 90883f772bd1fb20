"""The report as one page that needs nothing but itself: no script, no font, no other file."""

from __future__ import annotations

from datetime import datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2

from common.duration import duration
from common.errors import UsageError
from common.installing import install
from producer.report import numbers, words

if TYPE_CHECKING:
    from producer.report.data import Report

_WORKERS_SHOWN = 50


def page(report: Report) -> str:
    """Return the page.

    Raises:
        UsageError: matplotlib, which draws the pictures, is not installed.
    """
    try:
        from producer.report.figures import draw  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise UsageError(
            "The page's pictures cannot be drawn: matplotlib is not installed.",
            why=f"It is an extra of genq ({error}).",
            fix=f"{install('report')}, or without pictures: gen-producer report"
            f" {report.run} --json",
        ) from error
    folder = files(__package__)
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "n": numbers.count,
        "short": numbers.short,
        "percent": numbers.percent,
        "duration": duration,
        "hours": numbers.hours,
        "money": numbers.money,
        "when": _when,
    }
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    return template.render(
        r=report,
        style=(folder / "page.css").read_text(encoding="utf-8"),
        pictures=draw(report),
        headline=words.headline(report),
        advice=words.advice(report),
        state=words.state(report),
        class_words=words.CLASSES,
        workers=report.throughput.workers[:_WORKERS_SHOWN],
        settings=_flat(report.settings),
    )


def _when(text: str | None) -> str:
    """Return a time as people write it; what is no time stays as it is."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return text or "not known"
    return f"{moment.day} {moment:%b %Y, %H:%M}"


def _flat(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings as (name, value), those within others by both names."""
    flat: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, dict):
            flat += [(f"{name}.{inner}", str(item)) for inner, item in value.items()]
        else:
            flat.append((name, "not set" if value is None else str(value)))
    return [(name, value) for name, value in flat if value]
