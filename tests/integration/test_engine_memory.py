"""A card that does not come free after an engine's end."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from consumer.engine import gpu, life
from consumer.engine.gpu import GpuFacts
from consumer.engine.life import Life, StartBudget
from tests.support.fake_engine import FakeSglang, fake_spec
from tests.support.servers import eventually

GIB = 1 << 30


class Card:
    """What NVML says is in use, and how often it was asked."""

    def __init__(self):
        self.used = GIB
        self.looks = 0

    def facts(self, _gpu):
        self.looks += 1
        return GpuFacts("H", "u", 140 * GIB, self.used)


@pytest.fixture
def card(monkeypatch):
    one = Card()
    for module in (gpu, life):
        monkeypatch.setattr(module, "gpu_facts", one.facts)
    return one


async def begun(folder) -> Life:
    one = Life(
        FakeSglang(),
        fake_spec(folder, gpu=0),
        StartBudget(),
        stall_seconds=lambda: 300.0,
        in_flight=lambda: 0,
    )
    await one.begin()
    return one


async def test_memory_that_an_engine_leaves_taken_is_said_with_its_size_and_once(
    tmp_path, monkeypatch, card
):
    monkeypatch.setattr(life, "_MEMORY_SECONDS", 0.0)
    with structlog.testing.capture_logs() as logs:
        one = await begun(tmp_path)
        card.used = 41 * GIB
        await one.end(0.0)
        looks = card.looks
        await one.end(0.0)  # safe to call again; it was waited for already
    assert card.looks == looks
    said = [line for line in logs if line["event"] == "engine.memory_not_freed"]
    assert [line["log_level"] for line in said] == ["warning"]
    assert [said[0][name] for name in ("gpu", "used_mib", "before_mib")] == [0, 41 * 1024, 1024]


@pytest.mark.parametrize("at_once", [True, False])
async def test_who_is_in_a_hurry_does_not_wait_for_the_memory(tmp_path, monkeypatch, card, at_once):
    monkeypatch.setattr(life, "_MEMORY_SECONDS", 600.0)
    one, hurried = await begun(tmp_path), asyncio.Event()
    card.used, looks = 41 * GIB, card.looks
    if at_once:
        hurried.set()
    end = asyncio.create_task(one.end(10.0, hurried=hurried))
    if not at_once:
        await eventually(lambda: card.looks > looks)
        hurried.set()
    await asyncio.wait_for(end, 30)
    assert (card.looks > looks) == (not at_once)
