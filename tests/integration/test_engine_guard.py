"""The guard by itself, and SGLang's own entry point behind it."""

from __future__ import annotations

import asyncio
import json
import sys

import psutil
import pytest

from common.errors import EngineError
from consumer.engine import guard
from consumer.engine.api import EngineSpec, Launch
from consumer.engine.launch import sglang_launch
from consumer.engine.process import EngineProcess, log_path, tail
from consumer.engine.records import record_path
from tests.support.fake_engine import free_port


def spec_in(folder, **fields) -> EngineSpec:
    values = {"model": "m", "gpu": None, "url": None, "port": free_port(), "api_key": "s3cr3t-key"}
    return EngineSpec(**{**values, "state_dir": folder, **fields})


async def run(folder, code, **fields):
    """Run Python code as if it were an engine; returns its exit code and its log."""
    spec = spec_in(folder, **fields)
    launch = Launch((sys.executable, "-c", code), {guard.KEY_VARIABLE: spec.api_key})
    process = await EngineProcess.start(launch, spec)
    async with asyncio.timeout(30):
        returncode = await process.wait()
    await process.end(0)
    return returncode, process.last_lines()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.killpg(0, 9)", 137),
    ],
)
async def test_the_exit_code_comes_through(tmp_path, code, expected):
    assert (await run(tmp_path, code))[0] == expected


async def test_output_goes_to_the_log_without_the_key(tmp_path):
    code = "import os, sys; print(os.environ['GENQ_ENGINE_API_KEY']); sys.stderr.write('bye')"
    assert (await run(tmp_path, code))[1] == ["***", "bye"]


async def test_a_command_that_cannot_be_started_says_so_in_the_log(tmp_path):
    spec = spec_in(tmp_path)
    process = await EngineProcess.start(Launch(("/no/such/engine",), {}), spec)
    assert await process.wait() == 127
    assert "cannot start /no/such/engine" in process.last_lines()[0]


def test_the_log_is_bounded_and_keeps_the_newest(tmp_path):
    log = guard.Log(tmp_path / "x.log", 1000, b"")
    for n in range(300):
        log.write(f"line {n}\n".encode())
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"x.log", "x.log.1"}
    assert max(sizes.values()) < 1100
    assert "line 299" in (tmp_path / "x.log").read_text() + (tmp_path / "x.log.1").read_text()


async def test_a_log_names_each_start_and_the_last_lines_are_of_the_last_one(tmp_path):
    spec = spec_in(tmp_path, gpu=3)
    for words in ("first", "second"):
        flags = ("--word", words)
        _, lines = await run(tmp_path, f"print({words!r})", gpu=3, flags=flags)
        assert lines == [words]
    marks = [line for line in tail(log_path(spec)) if line.startswith("genq: ")]
    assert [line.split()[-2:] for line in marks] == [["--word", "first"], ["--word", "second"]]


async def test_an_engine_whose_log_cannot_be_written_is_not_started(tmp_path):
    spec = spec_in(tmp_path)
    log_path(spec).mkdir(parents=True)
    with pytest.raises(EngineError) as refusal:
        await EngineProcess.start(Launch((sys.executable, "-c", ""), {}), spec)
    assert str(log_path(spec)) in refusal.value.why


async def test_an_engine_that_cannot_be_recorded_is_ended_at_once(tmp_path):
    spec = spec_in(tmp_path)
    record_path(spec).mkdir(parents=True)
    word = f"engine-{spec.port}"
    launch = Launch((sys.executable, "-c", "import time; time.sleep(600)", word), {})
    with pytest.raises(EngineError, match="could not be recorded") as refusal:
        await EngineProcess.start(launch, spec)
    assert str(tmp_path) in refusal.value.fix
    # A process that ends meanwhile has none.
    lines = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if word in line]


def test_the_tail_of_a_missing_log_is_empty(tmp_path):
    assert tail(tmp_path / "none") == []


async def test_sglang_is_started_by_its_own_entry_point_with_the_key_added_inside(tmp_path):
    """A package of that name that only tells what it was given, instead of the real one."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "line = Path('/proc/self/cmdline').read_text()\n"
        "print(json.dumps([__name__, sys.argv[1:], line, 'GENQ_ENGINE_API_KEY' in os.environ]))\n"
    )
    spec = spec_in(tmp_path, gpu=1)
    launch = sglang_launch(spec, "/models/m", ("--dtype", "bfloat16"))
    env = {**launch.env, "PYTHONPATH": str(package.parent)}
    process = await EngineProcess.start(Launch(launch.argv, env), spec)
    assert await process.wait() == 0
    name, argv, line, in_environment = json.loads(tail(log_path(spec))[-1])
    assert name == "__main__"
    assert argv[:4] == ["--model-path", "/models/m", "--host", "127.0.0.1"]
    assert argv[-4:] == ["--dtype", "bfloat16", "--api-key", "***"]
    assert spec.api_key not in line
    assert not in_environment
