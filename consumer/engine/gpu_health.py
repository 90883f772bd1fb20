"""How a card is, as NVML tells: lost or there, hot, slowed down, how full and how busy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

# Bits of nvmlDeviceGetCurrentClocksEventReasons (NVML's reference, "Clocks Event Reasons").
THROTTLES = {
    "power_cap": 0x4,  # usual under full load
    "hw_slowdown": 0x8,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "power_brake": 0x80,
}


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One look at a card. ``up`` False: the driver answers and cannot read the card any more."""

    up: bool
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization: float | None = None  # 0 to 1
    temperature_celsius: float | None = None
    power_watts: float | None = None
    throttled: frozenset[str] = frozenset()


class GpuProbe:
    """Looks at one card again and again; for one thread at a time."""

    def __init__(self, gpu: int | None) -> None:
        self._gpu = gpu
        self._nvml: Any = None

    def look(self) -> GpuHealth | None:
        """Return how the card is; None where nobody can say: no card asked for, no NVML."""
        if self._gpu is None:
            return None
        if self._nvml is None:
            try:
                import pynvml  # noqa: PLC0415 - an optional package, and slow to load

                pynvml.nvmlInit()
            except Exception:  # noqa: BLE001 - no driver or no package: figures are a courtesy
                return None
            self._nvml = pynvml
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(self._gpu)
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except Exception:  # noqa: BLE001 - whatever it says, the card cannot be read
            return GpuHealth(up=False)
        return self._healthy(handle, memory)

    def _healthy(self, handle: Any, memory: Any) -> GpuHealth:
        nvml = self._nvml
        busy = self._ask("nvmlDeviceGetUtilizationRates", handle)
        heat = self._ask(
            "nvmlDeviceGetTemperature", handle, getattr(nvml, "NVML_TEMPERATURE_GPU", 0)
        )
        power = self._ask("nvmlDeviceGetPowerUsage", handle)
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # its name in older drivers' libraries
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        return GpuHealth(
            up=True,
            memory_used_bytes=int(memory.used),
            memory_total_bytes=int(memory.total),
            utilization=None if busy is None else busy.gpu / 100,
            temperature_celsius=heat,
            power_watts=None if power is None else power / 1000,
            throttled=frozenset(name for name, bit in THROTTLES.items() if int(bits) & bit),
        )

    def _ask(self, call: str, *arguments: Any) -> Any:
        """Return what a card may not support, or None."""
        with suppress(Exception):
            return getattr(self._nvml, call)(*arguments)
        return None
