"""What was measured, in a few lines and as docs/records/scale.md."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.scale.histogram import Histogram
    from tests.bench.scale.meter import Reading

FULL = 0.7  # of the one thread that runs commands: beyond, waiting times grow fast
MIB = 1 << 20
SCRIPTS = ("complete", "lease", "extend", "reap", "sweep", "commit")
CALLS = ("complete", "lease", "extend", "reap", "commit", "read", "look", "beat")

PAGE = """\
# Scale

Written by `{command}`, {now},
on {cores}, which server and simulated fleet share; Valkey {version}, `appendfsync {fsync}`.

A real server, the real scripts, and the calls of real consumers at their real rhythm. Simulated
are the engines (an answer is there after a lognormal time, mean {mean:.0f} s, sigma {sigma:g}) and
the PUT of a part ({put:g} s for {part} results). The AOF was not rewritten meanwhile.

| what | measured | how |
| --- | --- | --- |
{rows}

## Each call, in {seconds:.0f} s

At the server: a sample of its log of commands (SLOWLOG without a limit), so waiting in line is not
in it. At the client: from call to answer, waiting in line and the client's own lateness included.

| call | server p50, ms | p99, ms | client p50, ms | p99, ms | calls/s |
| --- | --- | --- | --- | --- | --- |
{scripts}

`look` is a consumer's look at the runs, each second; `beat` its figures and RQ's heartbeat, every
5 s; `read` a sink's read of up to 50 results.

## On paper

At {rate:,.0f} completions/s the server was busy {busy:.0%} of the time, and its main thread had
{cpu:.0%} of a core. Filled to {full:.0%}, with the rest for bursts, it carries **{cards:,.0f} cards
at 1.2 completions/s each** by its busy time, which counts waiting for the disk and for the cores
that others use here; and {cards_by_cpu:,.0f} by its CPU time, which a machine of its own with a
quick disk comes near to.

What bounds it then, in this order:

- One thread runs all commands, so more cores do not help; a faster core does, and a faster disk
  (`always` waits for it once a turn of the event loop).
- The results stream holds 512 MiB a run, {stream:,.0f} s of results of such a fleet while no sink
  commits (`GENQ_STREAM_BYTES`); past it consumers lease nothing.
- Results pass through it twice: with 100 kB each, the network card comes first.

What comes after:

- **A replica and Sentinel** are for availability, not for speed: all writes go to one server. What
  a fail-over loses is done again, and stored once (the chain of parts).
- **Several Redis, by run**: a run's keys are on one server, and runs know nothing of each other.
  Split a data set into runs, and give each group of consumers and its sinks a `GENQ_REDIS_URL` of
  their own; the store may be the same. Twice the servers, twice the cards.
"""


@dataclass(frozen=True)
class Scale:
    options: Any
    version: str
    load_seconds: float
    item_bytes: float
    memory: dict[str, int]
    before: Reading
    after: Reading
    calls: dict[str, Histogram]
    server: dict[str, Histogram]
    lag: Histogram
    completed: int
    committed: int
    lost: int
    starved: int
    repeated: int
    clients_cpu: float
    frame_ms: float
    frame_wall_ms: float
    problems: list[str]

    @property
    def wall(self) -> float:
        return self.after.at - self.before.at

    def share(self, name: str) -> float:
        """How much of a reading passed in a second."""
        return (getattr(self.after, name) - getattr(self.before, name)) / self.wall

    @property
    def rate(self) -> float:
        return self.completed / self.wall

    def cards(self, by: str) -> float:
        """How many cards one server carries at 1.2 completions/s each, on paper.

        ``by``: the reading that is filled: ``busy``, or ``main_cpu`` where disk and neighbours
        cost nothing. All of it is taken to grow with the completions: the calls that a card makes
        without completing anything grow with the number of cards, which is the same.
        """
        return FULL / self.share(by) * self.rate / 1.2


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def rows(scale: Scale) -> list[tuple[str, str, str]]:
    """(what, measured, how) of the main table."""
    options, memory = scale.options, scale.memory
    peak, resident = (memory[f"used_memory_{one}"] / MIB for one in ("peak", "rss"))
    asked = options.consumers * options.pace
    load_rate = options.items / scale.load_seconds
    loaded = f"{options.items:,} in {scale.load_seconds:.0f} s: {load_rate:,.0f}/s"
    fleet = f"{options.consumers:,} consumers of {options.leases} leases, two sinks"
    done = f"{scale.rate:,.0f}/s of {asked:,.0f} asked for; {scale.committed:,} committed"
    time_ = f"{scale.share('busy'):.0%} busy; CPU {scale.share('main_cpu'):.0%} of its main thread"
    lag = f"p50 {_ms(scale.lag.quantile(0.5))} ms, p99 {_ms(scale.lag.quantile(0.99))} ms"
    frame = f"{scale.frame_ms:.1f} ms of the server's time ({scale.frame_wall_ms:.0f} ms in all)"
    return [
        ("items loaded", loaded, "the enqueue script, 1,000 ids a call, 8 calls in flight"),
        ("memory of an item", f"{scale.item_bytes:.0f} bytes", "used_memory, loaded minus empty"),
        ("memory, peak", f"{peak:,.0f} MiB (resident {resident:,.0f})", "with leases and results"),
        ("completions", done, f"{fleet}; {options.result_bytes:,} bytes a result"),
        ("commands", f"{scale.share('commands'):,.0f}/s", "those that scripts call included"),
        ("the server's time", time_, "busy: its event loop at work, waiting for the disk included"),
        ("CPU of all its threads", f"{scale.share('cpu'):.0%} of a core", "psutil"),
        ("leases lost", str(scale.lost), "renewed every 15 s"),
        ("calls repeated", str(scale.repeated), "no answer within a minute"),
        ("lease calls that got too little", f"{scale.starved:,}", "the stream was full, or no ids"),
        ("a status frame", frame, "commandstats over 20 frames, all workers shown (bar: 50 ms)"),
        ("lateness of the clients", lag, "of their event loops; it is in the clients' times below"),
    ]


def summary(scale: Scale) -> str:
    lines = [f"{what:<32} {measured}" for what, measured, _ in rows(scale)]
    for place, found, names in (
        ("server", scale.server, SCRIPTS),
        ("client", scale.calls, CALLS),
    ):
        lines += [f"{n:<9} at the {place}  {_quantiles(found[n])}" for n in names if n in found]
    both = f"{scale.cards('busy'):,.0f} (by its busy time) to {scale.cards('main_cpu'):,.0f} (CPU)"
    lines.append(f"on paper, {FULL:.0%} full: {both} cards at 1.2 completions/s")
    return "\n".join(lines)


def _quantiles(found: Histogram) -> str:
    return f"p50 {_ms(found.quantile(0.5)):>8} ms, p99 {_ms(found.quantile(0.99)):>8} ms"


def page(scale: Scale, command: str) -> str:
    options, busy = scale.options, scale.share("busy")
    return PAGE.format(
        command=command,
        now=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        cores=f"{os.cpu_count()} cores ({platform.machine()})",
        version=scale.version,
        fsync=options.fsync,
        mean=options.leases / options.pace,
        sigma=options.sigma,
        put=options.put_seconds,
        part=options.part_rows,
        rows="\n".join(f"| {' | '.join(row)} |" for row in rows(scale)),
        seconds=scale.wall,
        scripts="\n".join(_script_rows(scale)),
        rate=scale.rate,
        busy=busy,
        full=FULL,
        cpu=scale.share("main_cpu"),
        cards=scale.cards("busy"),
        cards_by_cpu=scale.cards("main_cpu"),
        stream=512 * MIB / (scale.cards("busy") * 1.2 * options.result_bytes),
    )


def _script_rows(scale: Scale) -> Iterator[str]:
    for name in dict.fromkeys((*CALLS, *SCRIPTS)):
        server, client = scale.server.get(name), scale.calls.get(name)
        if server is None and client is None:
            continue
        cells = [
            *((_ms(server.quantile(0.5)), _ms(server.quantile(0.99))) if server else ("-", "-")),
            *((_ms(client.quantile(0.5)), _ms(client.quantile(0.99))) if client else ("-", "-")),
            f"{len(client) / scale.wall:,.0f}" if client else "-",
        ]
        yield f"| {name} | {' | '.join(cells)} |"
