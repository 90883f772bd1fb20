"""What a started SGLang server says of its own size: its boot log and its /server_info.

Requested is what the flags ask; effective is what came of it. The log names what the answer does
not (slots a request, what capped it); the answer is there where the log is not (``--url``).
Lines as 0.5.17 writes them; those that another release words otherwise are simply not found.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consumer.engine.api import Capacity
from consumer.engine.sglang_flags import slots_per_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

GIB = 1 << 30
# A start writes its bars of progress into the log as well, on lines of tens of kilobytes.
_LOG_BYTES = 4 << 20
_START = "server_args=ServerArgs("
_CAPPED = re.compile(
    r"max_running_requests is capped to (\d+) by the mamba state cache"
    r" \(max_mamba_cache_size=(\d+), (\d+) state slots per request\)"
)
_FIGURES = {
    "free_gib": re.compile(r"available_gpu_mem=([\d.]+) GB"),
    "running": re.compile(r"\bmax_running_requests=(\d+)"),
    "kv_tokens": re.compile(r"\bmax_total_num_tokens=(\d+)"),
}
_SLOTS = re.compile(r"max_mamba_cache_size: (\d+)")
_STATES = re.compile(r"\b\w+_state size: ([\d.]+)GB")
_CACHE = re.compile(r"KV Cache is allocated.*?K size: ([\d.]+) GB, V size: ([\d.]+) GB")
_WEIGHTS = re.compile(r"Load weight end\..*avail mem=([\d.]+) GB, mem usage=([\d.]+) GB")
_BEFORE = re.compile(r"Load weight begin\. avail mem=([\d.]+) GB")


@dataclass(frozen=True, slots=True)
class Boot:
    """What the last start in a log says. None: it does not say so. Memory in GiB, as the log's."""

    before_gib: float | None = None  # free before the first weight
    weight_gib: float | None = None
    draft_weight_gib: float | None = None
    state_gib: float | None = None
    kv_gib: float | None = None
    state_slots: int | None = None
    slots_per_request: int | None = None
    running: int | None = None
    kv_tokens: int | None = None
    free_gib: float | None = None
    capped: str = ""  # the server's own words


def read_boot(lines: Iterable[str]) -> Boot:
    """Return what the last start among ``lines`` says. Any text may be given."""
    found: dict[str, Any] = {}
    for line in lines:
        if _START in line:
            found = {}
            continue
        _read_line(line, found)
    return Boot(**found)


def _read_line(line: str, found: dict[str, Any]) -> None:
    if match := _CAPPED.search(line):
        found |= {
            "capped": match.group(),
            "state_slots": int(match[2]),
            "slots_per_request": int(match[3]),
        }
    elif match := _SLOTS.search(line):
        found["state_slots"] = int(match[1])
        found["state_gib"] = sum(float(size) for size in _STATES.findall(line))
    elif match := _CACHE.search(line):
        found.setdefault("kv_gib", float(match[1]) + float(match[2]))  # the draft's comes second
    elif match := _BEFORE.search(line):
        found.setdefault("before_gib", float(match[1]))
    elif match := _WEIGHTS.search(line):
        name = "draft_weight_gib" if "weight_gib" in found else "weight_gib"
        found[name] = float(match[2])
    elif "available_gpu_mem=" in line:
        for name, pattern in _FIGURES.items():
            if match := pattern.search(line):
                found[name] = float(match[1]) if name == "free_gib" else int(match[1])


def boot_of_log(path: Path) -> Boot:
    """Return what the end of a log file says of its last start (blocks on the disk)."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return Boot()
    return read_boot(text.splitlines())


def capacity_of(info: Mapping[str, Any], boot: Boot) -> Capacity:
    """Return requested and effective sizes from an answer of /server_info and the boot log.

    Raises:
        TypeError, ValueError: the answer holds something else than numbers there.
    """
    state: Mapping[str, Any] = (info.get("internal_states") or [{}])[0]
    memory: Mapping[str, Any] = state.get("memory_usage") or {}
    slots = _number(state.get("max_mamba_cache_size"), boot.state_slots)
    each = None
    if slots is not None:
        each = boot.slots_per_request or slots_per_request(
            str(info.get("mamba_radix_cache_strategy") or ""),
            radix=not info.get("disable_radix_cache"),
            overlap=not info.get("disable_overlap_schedule"),
        )
    return Capacity(
        asked_running=_number(info.get("max_running_requests")),
        state_slots=slots,
        slots_per_request=each,
        kv_tokens=_number(info.get("max_total_num_tokens"), boot.kv_tokens),
        free_bytes=_gib(memory.get("startup_available"), boot.free_gib),
        weight_bytes=_gib(memory.get("weight"), boot.weight_gib),
        mem_fraction=float(info["mem_fraction_static"])
        if info.get("mem_fraction_static")
        else None,
        capped=boot.capped,
    )


def _number(*values: Any) -> int | None:
    return next((int(value) for value in values if value is not None), None)


def _gib(*values: Any) -> int | None:
    return next((int(float(value) * GIB) for value in values if value is not None), None)
