"""The suite's own watch for secrets (tests/support/leaks.py) finds them wherever a test leaks."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.secured_run import ROOT, clean_environment

SECRET = "XV3kqf0-leaked-by-a-test"
LEAKING = f"""
import asyncio, json, logging, os, shutil, subprocess, sys, tempfile
from pathlib import Path
import pytest
from tests.support.leaks import know

SECRET = "{SECRET[:9]}" + "{SECRET[9:]}"
OTHER = SECRET[::-1]
PRINT = [sys.executable, "-c", "import os; print(os.environ['GENQ_S3_SECRET_KEY'])"]
URL = [sys.executable, "-c", "import os; print(os.environ['GENQ_REDIS_URL'][10:])"]
ENGINE = [sys.executable, "-c", "import os; print(os.environ['GENQ_ENGINE_API_KEY'])"]

@pytest.fixture(autouse=True)
def known():
    know(SECRET, "the secret")

def test_leak_stdout():
    print("key:", SECRET)

def test_leak_stderr():
    print("key:", SECRET, file=sys.stderr)

def test_leak_log():
    logging.getLogger("x").warning("with %s", SECRET)

@pytest.fixture
def loud():
    yield
    print(SECRET)

def test_leak_teardown(loud):
    pass

def test_leak_capsys(capsys):
    print(SECRET)
    capsys.readouterr()

def test_leak_command():
    env = {{**os.environ, "GENQ_S3_SECRET_KEY": OTHER}}
    subprocess.run(PRINT, env=env, capture_output=True, check=True)

def test_leak_url():
    env = {{**os.environ, "GENQ_REDIS_URL": "redis://user:" + OTHER + "@h/0"}}
    subprocess.run(URL, env=env, capture_output=True, check=True, text=True)

def test_leak_engine():
    async def run():
        env = {{**os.environ, "GENQ_ENGINE_API_KEY": OTHER}}
        process = await asyncio.create_subprocess_exec(*ENGINE, env=env, stdout=subprocess.PIPE)
        await process.communicate()
    asyncio.run(run())

def test_leak_file(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "engine.log").write_text("x" * 100 + SECRET)

def test_leak_removed():
    folder = tempfile.mkdtemp(prefix="genq-sink-")
    Path(folder, "stderr").write_text(SECRET)
    shutil.rmtree(folder)

def test_leak_open_stack(tmp_path):
    (tmp_path / "stack.json").write_text(json.dumps({{"redis_password": OTHER}}))
    (tmp_path / "stack.json").chmod(0o644)

def test_leak_stack_log(tmp_path):
    (tmp_path / "stack.json").write_text(json.dumps({{"redis_password": OTHER}}))
    (tmp_path / "stack.json").chmod(0o600)
    (tmp_path / "redis.log").write_text(OTHER)

def test_leak_failure():
    assert "the answer" == "has " + SECRET

def test_sound_failure():
    assert "one" == "two"

def test_sound_arguments(tmp_path):
    def inner(given):
        raise ValueError("no")
    inner(SECRET)

def test_sound_private_stack(tmp_path):
    (tmp_path / "stack.json").write_text(json.dumps({{"redis_password": OTHER}}))
    (tmp_path / "stack.json").chmod(0o600)

def test_sound_silence(tmp_path, capsys):
    print("nothing")
    assert capsys.readouterr().out == "nothing\\n"
    (tmp_path / "data.parquet").write_bytes(b"PAR1\\0" + SECRET.encode())
    subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True)
"""
SHARED = f"""
import pytest
from tests.support.leaks import know

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")

def test_shared_first(shared):
    know("{SECRET}", "the secret")
    (shared / "sink.log").write_text("{SECRET}")

def test_shared_last(shared):
    pass
"""


@pytest.fixture(scope="module")
def said():
    """What pytest says of the two files, in two processes; their folders are not this test's."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("test_leaking.py", LEAKING), ("test_shared.py", SHARED)):
            Path(folder, name).write_text(text)
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        plugins = [*("-p", "tests.support.leaks"), *("-p", "no:randomly", "-p", "no:cacheprovider")]
        workers = ("-n", "2", "--dist", "loadfile")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-rA", *plugins, *workers, f"--basetemp={folder}/t"],
            cwd=folder,
            env={**clean_environment(), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def outcomes(said: str, name: str) -> set[str]:
    return set(re.findall(rf"^(PASSED|FAILED|ERROR) .*::{name}\b", said, re.MULTILINE))


WAYS = re.findall(r"def (test_leak_\w+)", LEAKING)


@pytest.mark.parametrize("way", WAYS)
def test_a_test_that_shows_a_secret_fails(said, way):
    body = "FAILED" if way == "test_leak_failure" else "PASSED"
    assert outcomes(said, way) == {body, "ERROR"}


def test_one_that_shows_none_is_left_as_it_is(said):
    assert outcomes(said, "test_sound_failure") == {"FAILED"}
    assert outcomes(said, "test_sound_arguments") == {"FAILED"}
    assert outcomes(said, "test_sound_private_stack") == {"PASSED"}
    assert outcomes(said, "test_sound_silence") == {"PASSED"}


def test_a_folder_that_tests_share_is_looked_through_after_the_last_of_them(said):
    assert outcomes(said, "test_shared_first") == {"PASSED"}
    assert outcomes(said, "test_shared_last") == {"PASSED", "ERROR"}
    assert "shared0/sink.log" in said


def test_the_place_is_named_and_the_secret_blacked_out(said):
    assert "engine.log: 'xxxxx" in said
    assert "x<the secret>'" in said
    assert SECRET not in said
    assert SECRET[::-1] not in said
