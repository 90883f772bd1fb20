"""Structured logs on stderr: readable lines on a terminal, JSON lines elsewhere.

Prompts and completions are never logged. What looks like a secret is masked on its way out,
whoever put it there.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/@\s]*@")
_SECRET_NAMES = re.compile(r"password|secret|token$|api_key|authorization", re.IGNORECASE)


def mask(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Hide passwords in URLs and the values of fields that are named like secrets."""
    for name, value in event.items():
        if _SECRET_NAMES.search(name):
            event[name] = "***"
        elif isinstance(value, str):
            event[name] = _URL_PASSWORD.sub(r"\1***@", value)
    return event


def setup_logging(*, level: str = "info", form: str = "auto") -> None:
    """Configure structlog once per process; libraries' warnings go the same way."""
    number = logging.getLevelNamesMapping()[level.upper()]
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        mask,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, *_renderer(console=console)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr, force=True)


def _renderer(*, console: bool) -> list[Any]:
    if console:
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [structlog.processors.JSONRenderer()]
