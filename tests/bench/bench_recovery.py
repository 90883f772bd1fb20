"""How long until work goes on after a fault, measured on real parts: `make bench-recovery`.

    python -m tests.bench.bench_recovery [--lease 60] [--crowd 300] [--rows 100000] [--record FILE]

Prints a table, with how each figure was taken. Exits with 1 if a dead consumer's items take longer
than a lease and 15 s to be leased again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import platform
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.bench.recovery.crowd import crowd_dies
from tests.bench.recovery.loss import redis_is_lost
from tests.bench.recovery.pipeline import consumer_dies, engine_and_redis_die
from tests.support import servers

if TYPE_CHECKING:
    from collections.abc import Sequence

BAR_SECONDS = 15.0  # beyond the lease


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    what: str
    measured: str
    how: str
    kept: bool = True  # the bar, where there is one

    def line(self) -> str:
        return (
            f"| {self.what} | {self.measured}{'' if self.kept else ' **too long**'} | {self.how} |"
        )


def again(what: str, seconds: float, lease: float, how: str) -> Figure:
    bar = lease + BAR_SECONDS
    return Figure(what, f"{seconds:.1f} s (bar: {bar:.0f} s)", how, kept=seconds < bar)


async def measure(args: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []

    def note(*new: Figure) -> None:
        for figure in new:
            print(figure.line(), flush=True)
            figures.append(figure)

    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(servers.s3_server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="genq-recovery-")))
        one = await consumer_dies(s3, folder / "consumer", args.lease)
        note(
            again(
                f"SIGKILL of a consumer with {one.items} leases, until all are leased again",
                one.seconds,
                args.lease,
                f"two consumers of the stand-in, one sink; lease {args.lease:g} s; holders read"
                " every 0.1 s",
            )
        )
        many = await crowd_dies(args.crowd, 96, args.lease)
        note(
            again(
                f"{args.crowd} consumers with 96 leases each die at once ({many.items:,} items)",
                many.seconds,
                args.lease,
                "the queue's own calls; four survivors reap every 5 s and lease 256 at a time, as"
                f" consumers do; the first item was leased again after {many.first_seconds:.1f} s",
            )
        )
        life = await engine_and_redis_die(s3, folder / "pipeline")
        note(
            Figure(
                "SIGKILL of an engine, until the next one's first token",
                " / ".join(f"{seconds:.1f}" for seconds in life.first_token_seconds) + " s",
                "three times; the stand-in's counters, every 0.05 s: its start and the consumer's"
                " pause before it, without the minutes that a real model takes to load",
            ),
            Figure(
                "kill -9 of Redis, until the engines decode at 90 % of the rate before",
                f"{life.full_rate_seconds:.1f} s after it answered again",
                f"started again at once, it answered {life.redis_seconds:.1f} s after the kill; two"
                f" consumers, {life.rate:.0f} completions/s before; windows of 1 s",
            ),
            Figure(
                "tokens generated twice",
                f"{life.repeated:.2%}, of {life.items_repeated:.0f} completions' worth",
                f"{life.decoded:,} tokens decoded by all lives of the engines (read every 0.05 s),"
                f" {life.stored:,} stored: {life.items:,} items, of which three kills of an engine,"
                " one of a consumer and one of Redis each met up to 20 in flight",
            ),
        )
        loss = await asyncio.to_thread(redis_is_lost, s3, args.rows)
        note(
            Figure(
                f"all of Redis lost: {args.rows:,} rows, half of them committed, until"
                " `load --run` has put back the rest",
                f"{loss.seconds:.1f} s, {loss.requests:,} requests to S3",
                f"{loss.parts:,} parts of 500; {loss.restored:,} items marked committed,"
                f" {loss.queued:,} queued; requests counted in the client",
            )
        )
    return figures


def document(figures: Sequence[Figure], command: str) -> str:
    return "\n".join(
        [
            "# Recovery",
            "",
            f"Written by `{command}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC,",
            f"on {psutil.cpu_count()} cores ({platform.machine()}), shared with other work.",
            "",
            "| from, to | measured | how |",
            "| --- | --- | --- |",
            *(figure.line() for figure in figures),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lease", type=float, default=60.0, help="seconds")
    parser.add_argument("--crowd", type=int, default=300, help="consumers that die at once")
    parser.add_argument("--rows", type=int, default=100_000, help="of the run that Redis loses")
    parser.add_argument("--record", type=Path, help="write the table to this file")
    args = parser.parse_args()
    figures = asyncio.run(measure(args))
    if args.record:
        args.record.parent.mkdir(parents=True, exist_ok=True)
        words = " ".join(word for word in sys.argv[1:])
        command = f"python -m tests.bench.bench_recovery {words}".strip()
        args.record.write_text(document(figures, command))
    return 0 if all(figure.kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
