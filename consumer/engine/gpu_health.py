"""How a card is, as NVML tells: lost, failing, hot, slowed down, how full and how busy."""

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


# What says that a card should be looked after: memory errors that were not corrected since the
# driver was loaded, rows of memory that wait for a reset to be replaced, or cannot be replaced.
FAILURES = ("uncorrected_errors", "rows_to_replace", "rows_lost")
# Errors of NVML that say that the card itself is gone, by its reference: NVML_ERROR_GPU_IS_LOST and
# NVML_ERROR_RESET_REQUIRED. Any other may be the driver's, or a container's, and pass.
LOST = {15: "GPU is lost", 16: "GPU requires reset"}
_UNCORRECTED, _SINCE_LOADED = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One look at a card. ``up`` False: the driver answers and cannot read the card any more."""

    up: bool
    lost: str = ""  # the driver's words, where it says that the card is gone
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization: float | None = None  # 0 to 1
    temperature_celsius: float | None = None
    power_watts: float | None = None
    throttled: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()  # of FAILURES; the card still answers


class GpuProbe:
    """Looks at one card again and again; for one thread at a time."""

    def __init__(self, gpu: int | None) -> None:
        self._gpu = gpu
        self._nvml: Any = None
        self._named = ""

    @property
    def name(self) -> str:
        """Which card it is, in words: by its number, and once it was seen by name and UUID."""
        return f"GPU {self._gpu}" + (f" ({self._named})" if self._named else "")

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
        except Exception as error:  # noqa: BLE001 - whatever it says, the card cannot be read
            return GpuHealth(up=False, lost=LOST.get(_code(error), ""))
        if not self._named:
            words = (self._ask(f"nvmlDeviceGet{what}", handle) for what in ("Name", "UUID"))
            self._named = ", ".join(str(word) for word in words if word)
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
            failing=self._failing(handle),
        )

    def _failing(self, handle: Any) -> frozenset[str]:
        """Return what is wrong with the card's memory, as far as the card can say."""
        errors = self._ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_LOADED)
        rows = self._ask("nvmlDeviceGetRemappedRows", handle)
        # corrected, uncorrected, whether some wait for a reset, whether some could not be replaced
        _, _, waiting, lost = rows if rows is not None and len(rows) == 4 else (0, 0, 0, 0)
        found = dict(zip(FAILURES, (errors or 0, waiting, lost), strict=True))
        return frozenset(name for name, value in found.items() if value)

    def _ask(self, call: str, *arguments: Any) -> Any:
        """Return what a card may not support, or None."""
        with suppress(Exception):
            return getattr(self._nvml, call)(*arguments)
        return None


def _code(error: Exception) -> int:
    """Return NVML's number of an error, 0 for another's."""
    code = getattr(error, "value", 0)
    return code if isinstance(code, int) else 0
