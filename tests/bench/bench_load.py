"""Loading at two sizes, on a real Valkey and a real S3 server: time, rate, and peak memory.

    python -m tests.bench.bench_load [--rows 1000000]

Fails if ten times the rows take more than a quarter more memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.support import servers
from tests.support.producers import COMMAND

if TYPE_CHECKING:
    from pathlib import Path

GROWTH = 1.25


def write_rows(path: Path, count: int) -> None:
    with path.open("w") as file:
        for n in range(count):
            file.write(f'{{"id":"row-{n}","prompt":"Explain number {n} to a child, briefly."}}\n')


def load(path: Path, run: str, env: dict[str, str]) -> tuple[float, int]:
    """Load a file; return the seconds, and the producer's peak resident memory in bytes."""
    began = time.monotonic()
    words = ["load", str(path), "--run", run, "--model", "m", "--quiet"]
    child = subprocess.Popen([*COMMAND, *words], env=env)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, child.returncode
    return time.monotonic() - began, usage.ru_maxrss * 1024


def help_seconds() -> float:
    def once() -> float:
        began = time.monotonic()
        subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)
        return time.monotonic() - began

    return min(once() for _ in range(5))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    print(f"gen-producer --help: {help_seconds():.2f} s (best of 5)")
    peaks = []
    with servers.redis_server() as redis, servers.s3_server() as s3, servers.private_folder() as at:
        ours = {f"GENQ_{name.upper()}": value for name, value in s3.settings(prefix="b").items()}
        env = {**os.environ, **ours, "GENQ_REDIS_URL": redis.url, "TMPDIR": str(at)}
        for count in (rows // 10, rows):
            path = at / f"rows-{count}.jsonl"
            write_rows(path, count)
            seconds, peak = load(path, f"rows-{count}", env)
            again, _ = load(path, f"rows-{count}", env)
            peaks.append(peak)
            print(
                f"{count:>9,} rows: {seconds:6.1f} s, {count / seconds:8,.0f} rows/s, peak"
                f" {peak / 2**20:.0f} MiB; the same command again: {again:.1f} s"
            )
    growth = peaks[1] / peaks[0]
    print(f"ten times the rows: {growth:.2f} times the memory (bar: {GROWTH})")
    return 0 if growth <= GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
