from __future__ import annotations

import os
import sys
import threading
import types

import pytest

from common.errors import ConflictError
from consumer.engine import gpu
from consumer.engine.api import EngineSpec


def spec_in(folder, **fields) -> EngineSpec:
    values = {"model": "m", "gpu": 3, "url": None, "port": 1, "api_key": "", "state_dir": folder}
    return EngineSpec(**{**values, **fields})


def test_a_gpu_has_one_holder_who_is_named(tmp_path):
    first, second = gpu.EngineLock(spec_in(tmp_path)), gpu.EngineLock(spec_in(tmp_path))
    first.acquire()
    with pytest.raises(ConflictError, match=f"GPU 3: process {os.getpid()} on "):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_another_gpu_and_another_port_without_one_are_other_places(tmp_path):
    specs = [spec_in(tmp_path), spec_in(tmp_path, gpu=4), spec_in(tmp_path, gpu=None)]
    locks = [gpu.EngineLock(spec) for spec in [*specs, spec_in(tmp_path, gpu=None, port=2)]]
    for lock in locks:
        lock.acquire()
    for lock in locks:
        lock.release()


def test_a_holder_that_wrote_nothing_is_still_refused(tmp_path):
    first = gpu.EngineLock(spec_in(tmp_path))
    first.acquire()
    (tmp_path / "engines" / "gpu3.lock").write_text("")
    with pytest.raises(ConflictError, match="process unknown"):
        gpu.EngineLock(spec_in(tmp_path)).acquire()
    first.release()


def test_without_nvml_there_are_no_facts(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu.gpu_facts(0) is None


def test_a_driver_that_does_not_answer_gives_no_facts_and_holds_nobody_up(monkeypatch):
    hang = threading.Event()
    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(nvmlInit=hang.wait))
    monkeypatch.setattr(gpu, "ANSWER_SECONDS", 0.1)
    try:
        assert gpu.gpu_facts(0) is None
        (left,) = [thread for thread in threading.enumerate() if thread.name == "gpu-facts"]
        assert left.daemon
    finally:
        hang.set()
    left.join(30)


async def test_memory_is_waited_for_until_it_is_back_at_its_level(monkeypatch):
    used = [40 << 30, 20 << 30, 1 << 30]

    def facts(_):
        return gpu.GpuFacts("H", "u", 140 << 30, used.pop(0) if len(used) > 1 else used[0])

    monkeypatch.setattr(gpu, "gpu_facts", facts)
    assert await gpu.memory_freed(0, baseline_bytes=1 << 30, seconds=20)
    used[:] = [40 << 30]
    assert not await gpu.memory_freed(0, baseline_bytes=1 << 30, seconds=0)
    assert await gpu.memory_freed(None, baseline_bytes=None, seconds=0)
