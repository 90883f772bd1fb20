"""The name that was most likely meant, where one is given that there is none of."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like ``name``, or None if none is near."""
    close = get_close_matches(name, sorted(known), n=1)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return how a sentence ends that says that there is no ``name``."""
    close = nearest(name, known)
    return f": did you mean {close}?" if close else "."
