"""Engines: how each is launched, spoken to, watched and ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import UsageError

if TYPE_CHECKING:
    from consumer.engine.api import Engine

ENGINES = ("sglang", "llamacpp")


def engine_named(name: str) -> Engine:
    """Return the engine of that name.

    Raises:
        UsageError: there is none.
    """
    if name == "sglang":
        from consumer.engine.sglang import SglangEngine  # noqa: PLC0415 - one engine is loaded

        return SglangEngine()
    if name == "llamacpp":
        from consumer.engine.llamacpp import LlamaCppEngine  # noqa: PLC0415 - one engine is loaded

        return LlamaCppEngine()
    raise UsageError(
        f"There is no engine {name!r}.",
        why="--engine (GENQ_ENGINE) takes one of: " + ", ".join(ENGINES) + ".",
        fix="For example: --engine sglang",
    )
