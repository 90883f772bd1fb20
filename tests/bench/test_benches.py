"""The benches at the smallest size: that they run to their end, and what they write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def bench(name, *words):
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{name}", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_small_fleet_keeps_its_leases_and_its_books(tmp_path):
    page = tmp_path / "scale.md"
    size = (
        "--items",
        5000,
        "--seconds",
        4,
        "--consumers",
        10,
        "--leases",
        20,
        "--pace",
        3,
        "--part-rows",
        20,
    )
    said = bench("bench_scale", *size, "--record", page)
    assert "met    the books: they add up" in said
    text = page.read_text()
    for name in ("complete", "lease", "extend", "commit", "reap"):
        assert f"\n| {name} | " in text
    assert "cards\nat 1.2 completions/s each" in text


VENV = ROOT / "build" / "bench-venv"


@pytest.mark.skipif(not VENV.exists(), reason="the other tools are not installed: make bench-peers")
def test_two_tools_are_compared_and_lose_nothing_without_a_kill(tmp_path):
    page = tmp_path / "peers.md"
    size = ("--rows", 40, "--in-flight", 8, "--answer-tokens", 16, "--patience", 60)
    bench("bench_peers", *size, "--only", "genq,asyncio", "--record", page)
    rows = [line.split(" | ") for line in page.read_text().splitlines() if " | " in line][2:]
    assert [row[0].strip("| ") for row in rows] == ["genq", "openai asyncio loop"]
    for row in rows:
        assert "lost" not in row[3]
        assert row[4] == row[5] == "0", "neither lost nor doubled after a kill"
