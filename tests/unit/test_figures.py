"""What a worker's record shows of its engine and its card, and how a card is watched."""

from __future__ import annotations

import sys
import threading
import types
from dataclasses import replace
from pathlib import Path

import pytest

from consumer.engine import gpu_watch
from consumer.engine.api import EngineFacts, EngineLoad, EngineSpec
from consumer.engine.gpu_health import GpuHealth, GpuProbe
from consumer.engine.gpu_watch import GpuWatch
from consumer.engine.sglang import read_load
from consumer.engine.sglang_boot import capacity_of
from consumer.figures import card_figures, engine_figures
from tests.support.boots import Start
from tests.support.servers import eventually

SPEC = EngineSpec(
    model="m", gpu=0, url=None, port=1, api_key="", state_dir=Path(), profile="a-profile"
)
MTP = Start("mtp")
FACTS = EngineFacts(
    engine="sglang",
    version="0.5.17",
    model="m",
    model_fingerprint="",
    vocab_size=1,
    context_tokens=1,
    max_running=24,
    kv_tokens=603_879,
    capacity=capacity_of(MTP.info, MTP.boot),
)
LOAD = EngineLoad(20, 3, 0.25, 100, 0, state_usage=0.5, accept_length=2.8115)
HEALTH = GpuHealth(
    up=True,
    memory_used_bytes=10,
    memory_total_bytes=20,
    utilization=0.87,
    temperature_celsius=61,
    power_watts=512.0,
    throttled=frozenset({"sw_thermal", "power_cap"}),
    failing=frozenset({"rows_lost"}),
)


def test_requested_and_effective_stand_side_by_side():
    shown = engine_figures(SPEC, FACTS, LOAD)
    assert (shown["asked_running"], shown["max_running"]) == ("48", "24")
    assert (shown["state_slots"], shown["slots_per_request"]) == ("123", "5")
    assert (shown["kv_tokens"], shown["mem_fraction"]) == ("603879", "0.903")
    assert shown["capped"].startswith("max_running_requests is capped to 24")
    assert (shown["state_usage"], shown["accept_length"]) == ("0.5", "2.812")
    assert shown["profile"] == "a-profile"


def test_every_field_is_in_every_record():
    asked = replace(SPEC, max_running=7)
    nothing = engine_figures(asked, None, None)
    assert set(nothing) == set(engine_figures(SPEC, FACTS, LOAD))
    assert (nothing["asked_running"], nothing["max_running"]) == ("7", "0")
    assert set(card_figures(None)) == set(card_figures(HEALTH))
    assert not any(card_figures(None).values())


def test_a_card_is_shown_with_what_slows_it_and_what_fails():
    shown = card_figures(HEALTH)
    assert shown["gpu_throttled"] == "power_cap,sw_thermal"
    assert shown["gpu_failing"] == "rows_lost"
    assert (shown["gpu_up"], shown["gpu_utilization"]) == ("1", "0.87")
    assert card_figures(GpuHealth(up=False))["gpu_up"] == "0"


def test_a_sample_of_a_speculating_hybrid_tells_states_and_accepted_tokens():
    loads = (
        b'{"loads": [{"num_running_reqs": 1, "token_usage": 0.1,'
        b' "speculative": {"accept_length": 2.84, "accept_rate": 0.6}}]}'
    )
    load = read_load(loads, 'sglang:mamba_usage{tp_rank="0"} 0.75\n')
    assert (load.state_usage, load.accept_length) == (0.75, 2.84)
    plain = read_load(b'{"loads": [{"num_running_reqs": 1}]}', "")
    assert (plain.state_usage, plain.accept_length) == (None, None)


def driver(**more):
    module = types.ModuleType("pynvml")
    known = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda gpu: gpu,
        "nvmlDeviceGetMemoryInfo": lambda _: types.SimpleNamespace(used=1, total=2),
    }
    for name, answer in (known | more).items():
        setattr(module, name, answer)
    return module


@pytest.mark.parametrize(
    ("answers", "failing"),
    [
        ({}, set()),
        ({"nvmlDeviceGetTotalEccErrors": lambda *_: 0}, set()),
        ({"nvmlDeviceGetTotalEccErrors": lambda *_: 2}, {"uncorrected_errors"}),
        ({"nvmlDeviceGetRemappedRows": lambda _: (9, 1, 1, 0)}, {"rows_to_replace"}),
        ({"nvmlDeviceGetRemappedRows": lambda _: [0, 1, 0, 1]}, {"rows_lost"}),
    ],
)
def test_a_failing_card_is_told_from_a_sound_one(monkeypatch, answers, failing):
    monkeypatch.setitem(sys.modules, "pynvml", driver(**answers))
    health = GpuProbe(0).look()
    assert health.up
    assert health.failing == failing


async def test_a_watch_shows_the_newest_look(monkeypatch):
    used = iter(range(100))
    memory = {
        "nvmlDeviceGetMemoryInfo": lambda _: types.SimpleNamespace(used=next(used, 99), total=100)
    }
    monkeypatch.setitem(sys.modules, "pynvml", driver(**memory))
    watch = GpuWatch(0, look_seconds=0.01)
    assert watch.health is None
    watch.start()
    watch.start()
    try:
        await eventually(lambda: watch.health is not None and watch.health.memory_used_bytes > 2)
    finally:
        watch.stop()


async def test_a_driver_that_never_answers_has_lost_the_card(monkeypatch):
    hang = threading.Event()
    late = types.SimpleNamespace(used=1, total=2)
    answers = {"nvmlDeviceGetMemoryInfo": lambda _: hang.wait(60) and late}
    monkeypatch.setitem(sys.modules, "pynvml", driver(**answers))
    watch = GpuWatch(0)
    watch.start()
    try:
        await eventually(lambda: watch._asked_at is not None)
        assert watch.health is None
        monkeypatch.setattr(gpu_watch, "SILENT_SECONDS", -1.0)  # so long it has taken by now
        assert watch.health == GpuHealth(up=False, lost=gpu_watch.SILENT)
    finally:
        watch.stop()
        hang.set()
        watch._thread.join(30)


def test_without_a_card_or_nvml_there_is_nothing_to_watch(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for gpu in (None, 0):
        watch = GpuWatch(gpu)
        watch.start()
        if watch._thread is not None:
            watch._thread.join(30)
        assert watch.health is None
        watch.stop()
