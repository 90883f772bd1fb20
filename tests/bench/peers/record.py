"""What was measured, a line a tool, and as docs/records/peers.md."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.bench.peers.tools import Tool
    from tests.bench.peers.trial import Clean, Killed

    Result = tuple[Tool, Clean, Killed]

LOCK = Path(__file__).parents[3] / "requirements" / "bench.txt"
PAGE = """\
# Beside other tools

Written by `{command}`, {now},
on {cores}, shared with other work and with the stand-in engines: compare the rows with each other.

{rows} short requests, {in_flight} in flight, to two stand-in engines that give {tokens} tokens of
{token_ms:g} ms each, so {ideal:.0f} requests/s at most. Each tool runs as its documentation says,
with a real Valkey where it needs a broker ({versions}).

| tool | requests/s | client CPU | whole job | lost | doubled | asked again | whole after |
| --- | --- | --- | --- | --- | --- | --- | --- |
{table}

- **requests/s**: answers a second at the engines, without the first and the last tenth.
- **client CPU**, ms a request: of all processes of the tool, its children's too, over the same
  stretch. Ours includes rendering and tokenizing prompts, judging answers, and the sink.
- **whole job**, s: from the first command until the last row is in the results, starts included.
- The rest is of another run, in which all processes of the tool get SIGKILL when half of the
  answers are there, and are started again at once. Redis and the engines live on. **Lost**: rows
  that are not in the results when all is done, or when nothing came for {patience:.0f} s; a tool
  that hands them out later still is not waited for.
  **Doubled**: rows that are there more than once. **Asked again**: requests that the engines got
  beyond one for each row that is there. **Whole after**, s: from the restart until the last row.

The results are, for every tool but genq, lines of one file, appended with one write each when the
answer is there (the conversation loop writes through a buffer, as such scripts do). For genq they
are the rows of committed parts on a real S3 server. Where a tool can be told after how long a dead
worker's tasks are handed out again, it was told 20 s; so was genq (`GENQ_LEASE_SECONDS`).

How each was run:

{notes}

What the others are better at: a loop of forty lines needs no Redis, no storage and no services, and
for a job of minutes it is done first; Celery, Dramatiq, RQ and taskiq run any function, not only
prompts, and know schedules, chains and results that come back to the caller. Of those, who makes
the task itself repeatable (by an id that is looked up before writing) has no doubles either.
"""


def summary(result: Result) -> str:
    return "  ".join(
        f"{cell:>20}" if number == 0 else f"{cell:>7}" for number, cell in enumerate(_cells(result))
    )


def _cells(result: Result) -> list[str]:
    tool, clean, killed = result
    return [
        tool.name,
        f"{clean.rate:.1f}",
        f"{clean.cpu_ms:.1f}",
        f"{clean.seconds:.0f}" + (f" ({clean.lost} lost)" if clean.lost else ""),
        str(killed.lost),
        str(killed.doubled),
        str(killed.asked_again),
        f"{killed.seconds:.0f}" if not killed.lost else "never",
    ]


def page(results: list[Result], options: Any, command: str) -> str:
    each = options.answer_tokens * options.token_seconds
    return PAGE.format(
        command=command,
        now=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        cores=f"{os.cpu_count()} cores ({platform.machine()})",
        rows=options.rows,
        in_flight=options.in_flight,
        tokens=options.answer_tokens,
        token_ms=options.token_seconds * 1e3,
        ideal=options.in_flight / each,
        versions=_versions(),
        table="\n".join(f"| {' | '.join(_cells(one))} |" for one in results),
        patience=options.patience,
        notes="\n".join(f"- **{tool.name}**: {tool.note}." for tool, _, _ in results),
    )


def _versions() -> str:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    names = ("celery", "dramatiq", "rq", "taskiq", "openai")
    found = [f"{name} {pins[name]}" for name in names]
    return ", ".join([f"genq {importlib.metadata.version('genq')}", *found])
