"""What a doctor says of card, engine and model, and what its report comes to."""

from __future__ import annotations

import json
import os
import socket
import sys
from types import SimpleNamespace

import pytest

from common.doctor.engine_model import look_at_model
from common.doctor.findings import EXITS, Finding, Level, Part, Report
from common.doctor.queue import clock_finding
from common.errors import Exit
from common.settings import load_settings
from consumer import doctor
from consumer.engine.gpu import EngineLock
from tests.support.tiny_tokenizer import build_model_folder
from tests.unit.test_engine_gpu import spec_in

GIB = 1 << 30


@pytest.fixture
def settings(tmp_path):
    return load_settings(state_dir=tmp_path, model="m")


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts an nvidia-smi of the test's own into the PATH, before all others; no NVML."""
    monkeypatch.setitem(sys.modules, "pynvml", None)

    def make(*lines, code=0):
        program = tmp_path / "nvidia-smi"
        words = "\n".join(f"echo '{line}'" for line in lines)
        program.write_text(f"#!/bin/sh\n{words}\nexit {code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


def report(*findings):
    return Report("sink", "0", [Finding(*one, "what", "fix") for one in findings], [])


def test_the_first_part_that_fails_gives_the_exit_code():
    ok, fail = (Part.SETTINGS, "a", Level.OK), (Part.STORE, "b", Level.FAIL)
    assert report(ok).exit_code == Exit.DONE
    assert report(ok, (Part.REDIS, "c", Level.WARN)).exit_code == Exit.DONE
    assert report(ok, fail, (Part.MODEL, "d", Level.FAIL)).exit_code == Exit.STORE
    assert report(fail, (Part.REDIS, "c", Level.FAIL)).exit_code == Exit.QUEUE
    assert set(EXITS) == set(Part)


def test_a_remedy_stands_below_what_needs_one_only():
    lines = report((Part.REDIS, "a", Level.OK), (Part.STORE, "b", Level.WARN)).as_text().split("\n")
    assert [line.split()[0] for line in lines if line][:3] == ["ok", "warn", "->"]


def test_nvidia_smi_is_asked_where_nvml_is_missing(smi, settings):
    smi("0, NVIDIA H200, 570.1, 143771, 512", "1, NVIDIA H200, 570.1, 143771, 90000")
    card, holder = doctor.look_at_gpu(settings, 0)
    assert card.what == "GPU 0: NVIDIA H200, 140 GiB, driver 570.1"
    assert (holder.level, holder.what) == (Level.OK, "nobody; 139.9 of 140.4 GiB free")
    _, holder = doctor.look_at_gpu(settings, 1)
    assert holder.level is Level.WARN
    assert "others hold 87.9 GiB" in holder.what
    (missing,) = doctor.look_at_gpu(settings, 2)
    assert (missing.level, missing.what) == (Level.FAIL, "there is no GPU 2 here")


def test_a_driver_that_does_not_answer_is_told_from_none(smi, settings, monkeypatch):
    smi("NVIDIA-SMI has failed", code=9)
    (found,) = doctor.look_at_gpu(settings, None)
    assert (found.level, found.what) == (Level.FAIL, "the driver does not answer")
    monkeypatch.setenv("PATH", "/nowhere")
    (found,) = doctor.look_at_gpu(settings, None)
    assert "no NVIDIA driver" in found.what
    (found,) = doctor.look_at_gpu(settings.model_copy(update={"engine": "llamacpp"}), None)
    assert found.level is Level.OK


def test_nvml_tells_of_the_processes_that_hold_a_card(settings, monkeypatch):
    memory = SimpleNamespace(total=141 * GIB, used=100 * GIB)
    monkeypatch.setitem(
        sys.modules,
        "pynvml",
        SimpleNamespace(
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByIndex=lambda number: number,
            nvmlDeviceGetMemoryInfo=lambda handle: memory,
            nvmlDeviceGetName=lambda handle: "NVIDIA H200",
            nvmlDeviceGetUUID=lambda handle: "GPU-1",
            nvmlSystemGetDriverVersion=lambda: "570.1",
            nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=4711)],
        ),
    )
    _, holder = doctor.look_at_gpu(settings, 3)
    assert "others hold 100.0 GiB (processes 4711); 41.0 of 141.0 GiB free" in holder.what


def test_the_consumer_that_holds_a_card_is_named_and_not_disturbed(tmp_path):
    path = tmp_path / "engines" / "gpu3.lock"
    assert doctor.lock_holder(path) == ""
    lock = EngineLock(spec_in(tmp_path))
    lock.acquire()
    assert doctor.lock_holder(path) == f"process {os.getpid()}"
    lock.release()
    assert doctor.lock_holder(path) == ""
    path.write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    assert "elsewhere" in doctor.lock_holder(path)
    path.write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))
    assert doctor.lock_holder(path) == ""


@pytest.mark.parametrize(
    ("version", "level"),
    [("0.5.17", "ok"), ("0.5.23.post1", "ok"), ("0.5.9", "warn"), ("1.0", "warn")],
)
def test_a_release_that_was_not_tried_is_warned_about(settings, monkeypatch, version, level):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda _name: version)
    assert doctor.look_at_engine(settings, 0).level == level


def test_an_engine_that_is_not_installed_fails(settings):
    found = doctor.look_at_engine(settings, 0)
    assert (found.level, "pip install '.[sglang]'" in found.fix) == (Level.FAIL, True)


def test_a_model_renders_a_greeting_or_says_why_not(tmp_path):
    folder = build_model_folder(tmp_path / "tiny")
    _, template = look_at_model(str(folder), needed=True)
    assert template.level is Level.OK
    assert "context 4,096 tokens" in template.what
    broken = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**broken, "chat_template": "{{ raise_exception('no greetings') }}"})
    )
    _, template = look_at_model(str(folder), needed=True)
    assert (template.level, "no greetings" in template.what) == (Level.FAIL, True)


@pytest.mark.parametrize(
    ("model", "needed", "level"),
    [
        ("", True, "fail"),
        ("", False, "skip"),
        ("nothing-here", True, "fail"),
        ("nothing-here", False, "warn"),
        ("owner/not-in-any-cache", True, "warn"),
    ],
)
def test_a_model_that_is_not_there(model, needed, level):
    (found,) = look_at_model(model, needed=needed)
    assert found.level == level


def test_clocks_may_differ_a_little():
    assert clock_finding(Part.REDIS, 0.4, warn_seconds=5).level is Level.OK
    late = clock_finding(Part.STORE, -90, warn_seconds=60)
    assert (late.level, late.what) == (Level.WARN, "its clock is 90 s behind ours")
