"""What changed in SGLang between releases 0.5.10 and 0.5.23, in one table.

Settings, profiles and the tuner use the newest names; an older release gets its own. What a
release does not know is left out where leaving it out changes nothing but speed, and refused where
it would change more.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import Literal

from common.errors import EngineError

# For a model with a vision side that is only sent text. Before 0.5.18 no flag says so:
# consumer/engine/sglang_server.py then does.
TEXT_ONLY = "--language-model-only"

Release = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One flag that came, went or was renamed. ``since``: the first release of the new state."""

    since: Release
    flag: str  # the newest name; for one that went: its only name
    was: str = ""  # its older name, "" where there was none
    kind: Literal["renamed", "came", "gone"] = "renamed"
    takes_value: bool = True
    without: Literal["drop", "refuse"] = "refuse"  # on a release that does not know it


CHANGES = (
    Change((0, 5, 11), "--speculative-adaptive", kind="came", takes_value=False),
    Change((0, 5, 14), "--mamba-radix-cache-strategy", was="--mamba-scheduler-strategy"),
    Change((0, 5, 14), "--cuda-graph-max-bs-decode", was="--cuda-graph-max-bs"),
    Change((0, 5, 14), "--cuda-graph-bs-decode", was="--cuda-graph-bs"),
    Change(
        (0, 5, 14), "--disable-prefill-cuda-graph", kind="came", takes_value=False, without="drop"
    ),
    Change((0, 5, 15), "--min-free-slots-delay", kind="came", without="drop"),
    Change(
        (0, 5, 17),
        "--enable-linear-replayssm-spec",
        was="--enable-gdn-replayssm-spec",
        takes_value=False,
    ),
    Change((0, 5, 18), TEXT_ONLY, kind="came", takes_value=False, without="drop"),
    Change((0, 5, 18), "--torchao-config", kind="gone"),
    Change((0, 5, 19), "--prefill-decode-interval", kind="came", without="drop"),
    Change((0, 5, 22), "--cuda-graph-tc-compiler", kind="gone", without="drop"),
)
_NEWEST = {change.was: change.flag for change in CHANGES if change.was}

# Slots of the state pool that a running request takes, by strategy: three, and what the strategy
# keeps beside. The same in all these releases.
STATE_STRATEGIES = {"no_buffer": 3, "extra_buffer": 5, "extra_buffer_lazy": 4}

# The paths of a server's figures, the newest first.
SERVER_INFO = ("/server_info", "/get_server_info")
LOADS = ("/v1/loads", "/get_load")


def version_tuple(version: str) -> Release:
    """Return the leading numbers of a version: ``0.5.17.post1`` is ``(0, 5, 17)``."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def installed_version() -> str:
    """Return the release of SGLang in this Python, "" where there is none."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return ""


def slots_per_request(strategy: str, *, radix: bool, overlap: bool) -> int:
    """Return the state slots of a running request of a model with linear-attention layers."""
    if not radix:
        return 1
    if strategy == "extra_buffer" and not overlap:
        return 4
    return STATE_STRATEGIES.get(strategy, 3)


def newest_name(flag: str) -> str:
    """Return a flag's newest name."""
    return _NEWEST.get(flag, flag)


def flags_for(version: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``flags`` under the names that release ``version`` knows; "" is the newest.

    Raises:
        EngineError: the release does not know one that cannot be left out.
    """
    release = version_tuple(version)
    out: list[str] = []
    words = list(flags)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        name = newest_name(name)
        change = next((one for one in CHANGES if one.flag == name), None)
        if change is None or not release or _known(change, release):
            out.append(name + equals + value)
        elif change.kind == "renamed":
            out.append(change.was + equals + value)
        elif change.without == "drop":
            if change.takes_value and not equals and words:
                words.pop(0)
        else:
            raise _unknown(change, version)
    return tuple(out)


def _known(change: Change, release: Release) -> bool:
    return (release < change.since) if change.kind == "gone" else (release >= change.since)


def _unknown(change: Change, version: str) -> EngineError:
    since = ".".join(map(str, change.since))
    when = f"went with {since}" if change.kind == "gone" else f"came with {since}"
    return EngineError(
        f"SGLang {version} does not know {change.flag}.",
        why=f"It {when}.",
        fix=f"Leave {change.flag} out, or install another release: pip install 'sglang>={since}'"
        if change.kind == "came"
        else f"Leave {change.flag} out.",
    )
