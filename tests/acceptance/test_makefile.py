"""The Makefile and what it sets up from; the set-up itself is what runs these tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
TARGETS = [
    "setup", "demo", "test", "check", "test-slow",
    "faults", "chaos", "bench-queue", "bench-load", "bench-recovery", "bench-consumer", "docs",
    "bench-scale", "bench-peers", "lock",
]  # fmt: skip


def make(*arguments):
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_help_is_the_default_and_names_every_command():
    assert make() == make("help")
    named = re.findall(r"^  make (\S+)  +\S", make("help"), flags=re.MULTILINE)
    assert {*TARGETS, "clean"} <= set(named)


@pytest.mark.parametrize("target", TARGETS)
def test_every_command_sets_up_what_it_needs(target):
    recipe = make("--dry-run", "--always-make", target)
    assert "deploy/setup.sh" in recipe


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locks_pin_everything_by_hash_and_name_no_host(lock):
    text = lock.read_text(encoding="utf-8")
    requirements = re.findall(r"^[A-Za-z0-9].*", text, flags=re.MULTILINE)
    assert requirements
    assert all(re.match(r"[\w.-]+(\[[\w,]+\])?==\S+", line) for line in requirements)
    assert text.count("--hash=sha256:") >= len(requirements)
    assert "://" not in text
    assert "index" not in text


def test_torch_is_in_no_lock():
    assert not any(
        re.search(r"^(torch|sglang|nvidia-)", lock.read_text(), flags=re.MULTILINE)
        for lock in LOCKS
    )


def test_the_demo_set_up_agrees_with_the_test_set_up():
    pins = [
        dict(re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), flags=re.MULTILINE))
        for lock in LOCKS
        if lock.stem in ("local", "test")
    ]
    assert {name: version for name, version in pins[1].items() if name in pins[0]} == pins[0]


def test_an_interpreter_that_is_too_old_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "old").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "old").chmod(0o755)
    (tmp_path / "mktemp").symlink_to(shutil.which("mktemp"))
    (tmp_path / "deploy").mkdir()
    script = (ROOT / "deploy" / "setup.sh").read_text(encoding="utf-8")
    (tmp_path / "deploy" / "setup.sh").write_text(script, encoding="utf-8")
    refused = subprocess.run(
        ["bash", "deploy/setup.sh", "local"],
        cwd=tmp_path,
        env={"PYTHON": str(tmp_path / "old"), "PATH": str(tmp_path)},
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "No Python 3.11 or newer was found" in refused.stderr
    assert "make PYTHON=" in refused.stderr


def test_ci_runs_the_tests_and_names_no_path_of_a_machine():
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash")
    assert "make test" in text
    assert not re.search(r"://|/(home|work|root|opt)/", text)
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)
