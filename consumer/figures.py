"""What a worker's record tells of its engine and its card, as texts. Pure.

Every name is there in every record, empty where nothing is known: a record is overwritten field by
field, so one that was left out would show an old value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumer.engine.api import EngineFacts, EngineLoad, EngineSpec
    from consumer.engine.gpu_health import GpuHealth

# Names in the record, and the attributes that they show.
_CAPACITY = {
    "state_slots": "state_slots",
    "slots_per_request": "slots_per_request",
    "kv_tokens": "kv_tokens",
    "free_bytes": "free_bytes",
    "mem_fraction": "mem_fraction",
    "capped": "capped",
}
_LOAD = {
    "engine_running": "running",
    "engine_waiting": "waiting",
    "token_usage": "token_usage",
    "state_usage": "state_usage",
    "accept_length": "accept_length",
}
_CARD = {
    "gpu_utilization": "utilization",
    "gpu_memory_used_bytes": "memory_used_bytes",
    "gpu_memory_total_bytes": "memory_total_bytes",
    "gpu_power_watts": "power_watts",
    "gpu_temperature_celsius": "temperature_celsius",
    "gpu_throttled": "throttled",
    "gpu_failing": "failing",
}


def engine_figures(
    spec: EngineSpec, facts: EngineFacts | None, load: EngineLoad | None
) -> dict[str, str]:
    """Return what was asked of the engine, what came of it, and how full it is."""
    capacity = facts.capacity if facts else None
    asked = capacity.asked_running if capacity else None
    return {
        "profile": spec.profile,
        "max_running": str(facts.max_running if facts else 0),
        "asked_running": _text(spec.max_running if asked is None else asked),
        **_shown(capacity, _CAPACITY),
        **_shown(load, _LOAD),
    }


def card_figures(health: GpuHealth | None) -> dict[str, str]:
    """Return how the card is; all empty where nobody can say."""
    return {"gpu_up": "" if health is None else str(int(health.up)), **_shown(health, _CARD)}


def _shown(thing: object, names: dict[str, str]) -> dict[str, str]:
    return {shown: _text(getattr(thing, name, None)) for shown, name in names.items()}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
