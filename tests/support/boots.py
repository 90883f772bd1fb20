"""Starts of real servers: their flags, what their logs said, and their models' shapes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from consumer.engine.sglang_boot import Boot, read_boot
from consumer.tuning.model import ModelShape, shape_of
from tests.support.captured import FIXTURES

BOOT = FIXTURES / "boot"
MTP = (
    *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)
NO_RADIX = ("--disable-radix-cache", "--max-running-requests")
LARGE = ("--mem-fraction-static", "0.93", "--disable-prefill-cuda-graph")
# As given on the command line; the vision side was off in all of them.
FLAGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "ratio": ("--mamba-full-memory-ratio", "3.0", "--max-running-requests", "256"),
    "no_radix": (*NO_RADIX, "256"),
    "no_radix_large": (*NO_RADIX, "320", "--cuda-graph-max-bs-decode", "320", *LARGE),
    "no_radix_bf16": (
        *(*NO_RADIX, "448", "--mamba-ssm-dtype", "bfloat16"),
        *("--cuda-graph-max-bs-decode", "448", *LARGE),
    ),
    "mtp": MTP,
    "mtp_replay": (*MTP, *NO_RADIX, "160", "--enable-linear-replayssm-spec"),
    "mtp_too_many": (*MTP, *NO_RADIX, "96"),
}


@dataclass(frozen=True)
class Start:
    name: str

    @property
    def flags(self) -> tuple[str, ...]:
        return (*FLAGS.get(self.name, ()), "--language-model-only")

    @property
    def boot(self) -> Boot:
        return read_boot((BOOT / f"{self.name}.log").read_text().splitlines())

    @property
    def info(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads((BOOT / f"{self.name}.json").read_text())
        return answer

    @property
    def running(self) -> int:
        return int(self.info["internal_states"][0]["effective_max_running_requests_per_dp"])


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((BOOT / f"config_{name}.json").read_text())
    return config


def hybrid() -> ModelShape:
    return shape_of(config_of("27b"), name="Qwen3.6-27B")


def smol() -> ModelShape:
    return shape_of(config_of("smol"), name="SmolLM2-135M")


def near(predicted: float, seen: float, share: float = 0.03) -> bool:
    """Tell whether a prediction is off by no more than a share of what was seen."""
    return abs(predicted - seen) <= share * seen
