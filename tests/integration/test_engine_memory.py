"""A card that does not come free after an engine's end."""

from __future__ import annotations

import structlog

from consumer.engine import gpu, life
from consumer.engine.gpu import GpuFacts
from consumer.engine.life import Life, StartBudget
from tests.support.fake_engine import FakeSglang, fake_spec

GIB = 1 << 30


async def test_memory_that_an_engine_leaves_taken_is_said_with_its_size(tmp_path, monkeypatch):
    used = [GIB]
    for module in (gpu, life):
        monkeypatch.setattr(
            module, "gpu_facts", lambda _gpu: GpuFacts("H", "u", 140 * GIB, used[0])
        )
    monkeypatch.setattr(life, "_MEMORY_SECONDS", 0.0)
    one = Life(
        FakeSglang(),
        fake_spec(tmp_path, gpu=0),
        StartBudget(),
        stall_seconds=lambda: 300.0,
        in_flight=lambda: 0,
    )
    with structlog.testing.capture_logs() as logs:
        await one.begin()
        used[0] = 41 * GIB
        await one.end(0.0)
        said = [line for line in logs if line["event"] == "engine.memory_not_freed"]
        used[0] = GIB
        await one.end(0.0)  # safe to call again; by now it came free, which is not worth a word
    assert said == [line for line in logs if line["event"] == "engine.memory_not_freed"]
    assert [line["log_level"] for line in said] == ["warning"]
    assert [said[0][name] for name in ("gpu", "used_mib", "before_mib")] == [0, 41 * 1024, 1024]
