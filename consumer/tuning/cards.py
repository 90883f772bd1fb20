"""GPUs: memory as nvidia-smi shows it, memory bandwidth, and dense bfloat16 peak.

Bandwidth and peak are NVIDIA's data sheets' (without sparsity; where a sheet gives only the figure
with sparsity, half of it). Memory is what the driver reports as total, in MiB: H200 as
measured, the others from nvidia-smi's usual output; it differs by some MiB between drivers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30
_NEAR = 0.03  # two sizes that differ by less are one card's


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of GPU."""

    name: str
    memory_bytes: int
    bandwidth: float  # bytes a second
    flops: float  # bfloat16 operations a second, dense
    source: str


def _card(name: str, mib: int, terabytes: float, teraflops: float, source: str) -> Card:
    return Card(name, mib * MIB, terabytes * 1e12, teraflops * 1e12, source)


# The first whose name stands in NVML's name is taken: the longer names come first.
CARDS = (
    _card("B200", 183_359, 8.0, 2250, "NVIDIA Blackwell architecture brief; 180 GB HBM3e"),
    _card("H200", 143_771, 4.8, 989.5, "NVIDIA H200 data sheet; memory seen"),
    _card("H100 NVL", 95_830, 3.9, 835, "NVIDIA H100 data sheet, NVL"),
    _card("H100 PCIe", 81_559, 2.0, 756, "NVIDIA H100 data sheet, PCIe"),
    _card("H100", 81_559, 3.35, 989.5, "NVIDIA H100 data sheet, SXM"),
    _card("H20", 97_871, 4.0, 148, "NVIDIA H20 specification"),
    _card("A100 PCIe 80GB", 81_920, 1.935, 312, "NVIDIA A100 data sheet, PCIe 80 GB"),
    _card("A100 40GB", 40_960, 1.555, 312, "NVIDIA A100 data sheet, 40 GB"),
    _card("A100", 81_920, 2.039, 312, "NVIDIA A100 data sheet, SXM 80 GB"),
    _card("L40S", 46_068, 0.864, 362, "NVIDIA L40S data sheet"),
    _card("L40", 46_068, 0.864, 181, "NVIDIA L40 data sheet"),
    _card("L4", 23_034, 0.3, 121, "NVIDIA L4 data sheet"),
    _card("A10", 23_028, 0.6, 125, "NVIDIA A10 data sheet"),
    _card("RTX 4090", 24_564, 1.008, 165, "NVIDIA Ada architecture paper"),
)


def card_named(text: str) -> Card | None:
    """Return the card that a name means: ``h200``, or NVML's ``NVIDIA A100-SXM4-40GB``."""
    said = set(re.split(r"[^a-z0-9]+", text.lower()))
    for card in CARDS:
        if all(word in said for word in card.name.lower().split()):
            return card
    return None


def card_of_size(memory_bytes: int) -> Card | None:
    """Return the card whose memory is of this size, None where none or several are."""
    near = [c for c in CARDS if abs(c.memory_bytes - memory_bytes) <= _NEAR * memory_bytes]
    return near[0] if len({card.bandwidth for card in near}) == 1 else None
