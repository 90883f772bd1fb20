"""Names of SGLang's flags that changed between releases, from 0.5.10 to 0.5.23.

Settings, profiles and the tuner use the newest names; an older release gets its own.
"""

from __future__ import annotations

# (first release with the new name, new name, old name)
RENAMED = (
    ((0, 5, 14), "--mamba-radix-cache-strategy", "--mamba-scheduler-strategy"),
    ((0, 5, 14), "--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
    ((0, 5, 14), "--cuda-graph-bs-decode", "--cuda-graph-bs"),
    ((0, 5, 17), "--enable-linear-replayssm-spec", "--enable-gdn-replayssm-spec"),
)


def version_tuple(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``0.5.17.post1`` is ``(0, 5, 17)``."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def flags_for(version: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``flags`` under the names that release ``version`` knows; "" is the newest."""
    release = version_tuple(version)
    if not release:
        return flags
    names = {new: old for since, new, old in RENAMED if release < since}
    return tuple(_renamed(flag, names) for flag in flags)


def _renamed(flag: str, names: dict[str, str]) -> str:
    name, equals, value = flag.partition("=")
    return names.get(name, name) + equals + value
