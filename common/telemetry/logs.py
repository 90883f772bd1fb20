"""Structured logs on stderr: readable lines on a terminal, JSON lines elsewhere.

Prompts and completions are never logged. What looks like a secret is masked on its way out,
whoever put it there. What cannot be written, as on a full disk, is lost: work goes on without it.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from typing import TextIO

    from structlog.typing import EventDict, WrappedLogger

CACHE_LOGGERS = True  # once configured, a process's loggers stay as they are
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/@\s]*@")
_SECRET_NAMES = re.compile(r"password|secret|token$|api_key|authorization", re.IGNORECASE)


def mask(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Hide passwords in URLs and the values of fields that are named like secrets."""
    for name, value in event.items():
        event[name] = _masked(name, value)
    return event


def _masked(name: str, value: Any) -> Any:
    if _SECRET_NAMES.search(name):
        return "***"
    if isinstance(value, str):
        return _URL_PASSWORD.sub(r"\1***@", value)
    if isinstance(value, dict):
        return {key: _masked(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(name, inner) for inner in value]
    return value


class _Unfailing:
    """A stream for logs that never raises; what its file does not take comes later, or never."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def _let_go() -> None:
    """Drop what standard error still holds: the interpreter would end with a code of its own."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def setup_logging(*, level: str = "info", form: str = "auto") -> None:
    """Configure structlog once per process; what libraries say takes the same form."""
    number = logging.getLevelNamesMapping()[level.upper()]
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _clock(console=console),
        structlog.processors.format_exc_info,  # text, with no values of variables
        mask,
    ]
    stream: Any = _Unfailing(sys.stderr)
    atexit.register(_let_go)
    structlog.configure(
        processors=[*shared, *_renderer(console=console)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=CACHE_LOGGERS,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderer(console=console),
            ],
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


def _clock(*, console: bool) -> Any:
    if console:  # for somebody who looks on
        return structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    return structlog.processors.TimeStamper(fmt="iso", utc=True)


def _renderer(*, console: bool) -> list[Any]:
    if console:
        return [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    return [structlog.processors.JSONRenderer()]
