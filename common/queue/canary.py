"""What the canary needs to know of a run, and what it says: the first rows may hold the run.

What is counted, and when it holds a run, is in lua/_canary.lua, in the same scripts that take the
results and the failures. Watched are the first items that are handed out. Each counts by its first
finished try; engine faults are no finished try, and classes that the run keeps are no fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.audit import TRUNCATED, Canary
from common.records import Policy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from common.records import RunManifest

FAULTS = "faults"
REASONS = (FAULTS, TRUNCATED)  # what a run is held for, and what may be accepted
_FINISHED, _FAULTS = "canary:finished", "canary:faults"
_CLASS = "canary:class:"


def canary_facts(manifest: RunManifest, accepted: Collection[str] = ()) -> dict[str, str | float]:
    """Return what the scripts need to know of a run's canary, for the run's facts in Redis."""
    settings = manifest.settings
    rows = min(settings.canary_rows, manifest.items)
    kept = [name for name, policy in settings.policies.items() if policy == Policy.KEEP]
    cut_off = TRUNCATED in accepted or (FAULTS in accepted and TRUNCATED not in kept)  # as in Lua
    return {
        "canary": "watching" if rows else "off",
        "canary_rows": rows,
        "canary_faults": 0 if FAULTS in accepted else settings.canary_faults,
        "canary_truncated": 0 if cut_off else settings.canary_truncated,
        "canary_keep": f" {' '.join(kept)} ",
    }


def read_canary(facts: Mapping[str, str], counters: Mapping[str, str]) -> Canary:
    """Return how the first rows went, from a run's facts and counters."""
    if facts.get("canary", "off") == "off":  # a run of an older release has none
        return Canary()
    classes = {
        name.removeprefix(_CLASS): int(count)
        for name, count in counters.items()
        if name.startswith(_CLASS)
    }
    return Canary(
        state=facts["canary"],
        rows=int(facts["canary_rows"]),
        finished=int(counters.get(_FINISHED, 0)),
        faults=int(counters.get(_FAULTS, 0)),
        classes=dict(sorted(classes.items(), key=lambda pair: (-pair[1], pair[0]))),
        held_for=facts.get("canary_held", ""),
        accepted=tuple(name for name in REASONS if float(facts[f"canary_{name}"]) == 0),
    )
