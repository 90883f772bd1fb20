"""Names of log events: those that the code writes, and those that pages send their readers to."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.support.docs_links import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGES = ("common", "consumer", "deploy", "producer")
_LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_NO_NOUNS = {"cannot", "in", "kept", "left", "not", "nothing", "own", "the"}
_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", flags=re.DOTALL | re.MULTILINE)


def log_events() -> set[str]:
    """Return the names of all events that our services log."""
    return {
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in _events_of(path.read_text(encoding="utf-8"))
    }


def _events_of(source: str) -> Iterable[str]:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _LEVELS
            and re.search(r"\b_?log$", ast.unparse(node.func.value))
        ):
            for said in ast.walk(node.args[0]) if node.args else ():
                if isinstance(said, ast.Constant) and isinstance(said.value, str):
                    yield said.value


def unknown_events(text: str, events: set[str]) -> list[str]:
    """Return what a page names as an event and nothing logs.

    Such a name stands in backquotes and begins with the noun that an event begins with: ``engine.``
    or ``engine `` for one. Only names of files may do so, too.
    """
    families = {re.split(r"[ .]", name)[0] for name in events if re.match(r"[a-z]+[ .]\w", name)}
    families -= _NO_NOUNS
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", _FENCE.sub("", text)))
    return [
        span
        for span in spans
        if re.fullmatch(r"[a-z]+(?:\.[a-z_]+|(?: [a-z]+)+)", span)
        and re.split(r"[ .]", span)[0] in families
        and not re.search(r"\.(?:py|md|json|toml|yml|lua|txt)$", span)
        and span not in events
    ]
