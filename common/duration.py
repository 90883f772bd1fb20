"""How long something takes, in words: the same in every command."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a time in its two largest units."""
    left = round(seconds)
    parts: list[str] = []
    for name, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (name == "s" and not parts):
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])
