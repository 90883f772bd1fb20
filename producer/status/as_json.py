"""A run's state as data: what `status --json` prints, described in docs/status.md. Pure.

Fields are only ever added; the version changes when that is no longer possible.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from common.audit import flagged
from producer.status.state import cost, eta, next_command, stalled_seconds, state_of

if TYPE_CHECKING:
    from producer.status.data import RunStatus, StoredOnly

JSON_VERSION = 1
_PLACES = ("total", "loaded", "queued", "waiting", "leased", "generated", "committed", "dead")


def run_json(status: RunStatus) -> dict[str, Any]:
    """Return a run's state as data. Fields are only ever added."""
    counts = asdict(status.counts)
    word, cause = state_of(status)
    left, recent = eta(status), status.recent
    return {
        "version": JSON_VERSION,
        "run": status.info.run,
        "state": word,
        "cause": cause,
        "behind": status.behind,
        "stalled_seconds": stalled_seconds(status),
        "queue_state": status.info.state,
        "epoch": status.info.epoch,
        "model": status.info.model,
        "priority": status.info.priority,
        "created": status.info.created,
        "at": counts["at"],
        "counts": {name: counts[name] for name in _PLACES},
        "rate": {
            "recent": _rate(recent.completions, recent.tokens) if recent else None,
            "recent_range": [recent.low, recent.high] if recent and recent.low else None,
            "average": _rate(status.average.completions, status.average.tokens)
            if status.average
            else None,
        },
        "eta_seconds": list(left) if left else None,
        "last_part": status.last_part,
        "cost": _cost(status),
        "tokens": {
            "prompt": counts["prompt_tokens"],
            "completion": counts["completion_tokens"],
            "wasted": counts["wasted_tokens"],
        },
        "failures": counts["failures"],
        "dead_by_class": status.dead_by_class,
        "dead_looked_at": status.dead_looked_at,
        "verdicts": counts["verdicts"],
        "flagged": status.flagged,
        "canary": {**counts["canary"], "worst": status.counts.canary.worst},
        "examples": [asdict(one) for one in status.examples],
        "children": [asdict(one) for one in status.children],
        "seconds_since": {name: counts[f"since_{name}"] for name in ("lease", "result", "commit")},
        "problems": status.problems,
        "workers": [{**asdict(one), "silent": one.silent} for one in status.workers],
        "other_workers": status.others,
        "redis": _redis(status),
        "next": next_command(status),
    }


def _rate(completions: float, tokens: float) -> dict[str, float]:
    return {"completions": completions, "tokens": tokens}


def _cost(status: RunStatus) -> dict[str, Any] | None:
    found = cost(status)
    if found is None:
        return None
    price = status.price
    return {
        "gpu_hours": found.hours,
        "gpu_hours_in_all": list(found.total) if found.total else None,
        "price": price,
        "so_far": None if price is None else found.hours * price,
        "in_all": [one * price for one in found.total]
        if found.total and price is not None
        else None,
    }


def _redis(status: RunStatus) -> dict[str, Any] | None:
    server = status.server
    if server is None:
        return None
    return {"memory_bytes": server.memory_bytes, "memory_limit_bytes": server.memory_limit_bytes}


def stored_json(found: StoredOnly) -> dict[str, Any]:
    """Return what is known of a run that only object storage has."""
    return {
        "version": JSON_VERSION,
        "run": found.manifest.run,
        "state": "done" if found.success else "not_in_redis",
        "counts": {"total": found.manifest.items, "committed": found.committed},
        "flagged": flagged(found.verdicts),
    }
