"""How genq is installed, for messages: from its checkout. No registry has it, so none is named."""

from __future__ import annotations

_WHERE = "(in genq's checkout)"
UPGRADE = f"git pull && pip install .    {_WHERE}"


def install(extra: str) -> str:
    """Return the command that installs one of the extras of pyproject.toml."""
    return f"pip install '.[{extra}]'    {_WHERE}"
