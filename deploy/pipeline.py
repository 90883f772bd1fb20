"""What ``gen-local`` does with a stack: load, generate, store, fetch, and say where it all is."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from textwrap import shorten
from typing import TYPE_CHECKING, NoReturn, Self

import click
from rich.filesize import decimal

from common.errors import EngineError, Exit, GenqError
from common.objectstore import RunPaths
from common.queue.run_state import Runs
from common.redis_client import connect
from common.s3 import open_store
from consumer.engine.llamacpp import gguf_file
from deploy import STATE_FOLDER, processes
from deploy.progress import Look, Rates, Screen, duration, screen
from deploy.results import count_truncated, download, opening_lines, relative, some_answers
from deploy.stack import BUCKET, Service, Stack, program
from producer.manifest import find_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from common.audit import RunCounts
    from common.ids import RunName

LOOK_SECONDS = 0.5
SEAL_SECONDS = 10  # people watch: parts are sealed soon
SHOWN_ANSWERS = 3
SHOWN_CHARACTERS = 96
DEFAULT_MODEL = "smollm2"


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: handled as Ctrl-C is, with another exit code."""


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


@dataclass(frozen=True, slots=True)
class Job:
    """What was asked for on the command line."""

    run: RunName
    folder: Path
    dataset: str | None
    again: str  # the command line that goes on with it
    keep: bool
    model: str | None
    max_tokens: int
    temperature: float | None
    samples: int | None
    limit: int | None
    on_error: str
    form: str

    @property
    def results(self) -> Path:
        """Where the run's output is copied to."""
        return self.folder / "results"


class LocalRun:
    """One run on a stack whose servers answer."""

    def __init__(self, job: Job, stack: Stack) -> None:
        self._job = job
        self._stack = stack
        self.last: Look | None = None

    def load(self) -> int:
        """Load the data set, or put the run back; return gen-producer's exit code."""
        job = self._job
        argv = [*program("gen-producer"), "load"]
        if job.dataset is not None:
            options = {
                "--model": job.model or DEFAULT_MODEL,
                "--max-tokens": job.max_tokens,
                "--temperature": job.temperature,
                "--samples": job.samples,
                "--limit": job.limit,
                "--on-error": job.on_error,
                # The small default limit is for a first look; how many it cut is said at the end.
                "--canary-truncated": 0,
            }
            argv.append(job.dataset)
            argv += [str(x) for pair in options.items() if pair[1] is not None for x in pair]
        argv += ["--run", job.run]
        code, output = self._stack.run_command(argv, capture=True, merge=True)
        # What comes next is done here, and a new name is given here.
        ours = ("Next:", "Load it under a new name:")
        said = [line for line in output.splitlines() if not line.strip().startswith(ours)]
        click.echo("\n".join(said), err=True)
        if code == Exit.CONFLICT:
            click.echo(
                f"  {_other_name(job)}\n  or without the old one and its results: {_anew(job)}",
                err=True,
            )
        return code

    def source(self) -> str | None:
        """Return which data set the run is of, as it was named; None if there is no run."""
        manifest = find_manifest(open_store(self._stack.settings()), self._job.run)
        return manifest.source if manifest else None

    def is_done(self) -> bool:
        """Tell whether the run's output is complete."""
        store = open_store(self._stack.settings())
        return store.stat(RunPaths(self._job.run).success) is not None

    def generate(self) -> None:
        """Answer and store everything, and show how it goes.

        Raises:
            EngineError: the consumer ended before the run was done.
            GenqError: the sink did.
        """
        consumer = self._start_consumer()
        sink = self._stack.start_service(
            "gen-sink", "--burst", "--seconds", str(SEAL_SECONDS), "--format", self._job.form
        )
        view = screen(self._job.run)
        try:
            with Watch(self._stack, self._job.run) as watch:
                self._follow(consumer, sink, watch, view)
        finally:
            view.close()

    def _start_consumer(self) -> Service:
        model = self._job.model or DEFAULT_MODEL
        return self._stack.start_service(
            "gen-consumer", "--engine", "llamacpp", "--model", model, "--run", self._job.run
        )

    def _follow(self, consumer: Service, sink: Service, watch: Watch, view: Screen) -> None:
        rates = Rates()
        said: set[str] = set()
        while sink.exit_code() is None:
            counts = watch.counts()
            if counts is not None:
                self.last = rates.look(counts, now=time.monotonic())
                view.show(self.last)
                for topic, text in self._remarks(counts):
                    if topic not in said:
                        said.add(topic)
                        view.say(text())
            if consumer.exit_code() is not None and not self.is_done():
                raise self._ended(EngineError, "The consumer", consumer)
            time.sleep(LOOK_SECONDS)
        if not self.is_done():
            raise self._ended(GenqError, "The sink", sink)

    def _remarks(self, counts: RunCounts) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield what is worth a line of its own, each topic of which is said once."""
        if counts.leased and counts.done:
            yield "rq info", self._rq_info
        if counts.state in ("held", "paused"):
            accept = " --accept" if counts.state == "held" else ""
            resume = look_command(self._stack, f"gen-producer resume {self._job.run}{accept}")
            reason = counts.hold_reason or "somebody asked for it"
            yield "held", lambda: f"The run is {counts.state}: {reason}. To go on: {resume}"

    def _ended(self, kind: type[GenqError], name: str, service: Service) -> GenqError:
        lines = processes.last_lines(service.log)
        # Where it said itself why it ends, what came before is noise.
        _, mark, words = lines.rpartition("\nError: ")
        return kind(
            f"{name} ended with exit code {service.exit_code()} before the run was done.",
            why=f"The last lines of {relative(service.log)}:\n{words if mark else lines}",
            fix=f"When that is mended, go on with: {self._job.again}",
        )

    def _rq_info(self) -> str:
        """Return RQ's own view of the run, with the command that shows it."""
        _, output = self._stack.run_command([*program("rq"), "info"], capture=True)
        shown = "\n".join("  " + line for line in output.rstrip().splitlines())
        return f"{look_command(self._stack, 'rq info')}\n{shown}"

    def prove(self) -> int:
        """Have the run proven complete and unique from storage; return the exit code."""
        argv = [*program("gen-producer"), "verify", self._job.run]
        code, output = self._stack.run_command(argv, capture=True)
        # That command needs servers that are about to end; ours comes at the end.
        click.echo(re.sub(r" To do them again: .*", "", output), err=True, nl=False)
        return code

    def fetch(self) -> list[Path]:
        """Copy the output out of the S3 server; return the data files."""
        return download(open_store(self._stack.settings()), self._job.run, self._job.results)

    def tell(self, files: list[Path], *, seconds: float) -> None:
        """Say where the results are and how they are opened."""
        job = self._job
        size = decimal(sum(file.stat().st_size for file in files))
        suffix = files[0].name.partition(".")[2] if files else "parquet"
        duckdb, datasets = opening_lines(job.results / "data", suffix)
        where = f"{relative(program('gen-local')[0])} --run {job.run}"
        if job.folder != STATE_FOLDER / job.run:
            where += f" --dir {shlex.quote(relative(job.folder))}"
        for prompt, answer in some_answers(files, SHOWN_ANSWERS):
            click.echo(f"\n> {one_line(prompt)}\n  {one_line(answer)}", err=True)
        click.echo(
            f"\nDone in {duration(seconds)}. {len(files)} files, {size}:"
            f" {relative(job.results / 'data')}/"
            f"\nThe same in object storage: s3://{BUCKET}/{job.run}/data/"
            f"   (to see it: {where} --serve)"
            f"\n\nOpen them with DuckDB, or with datasets:\n\n{duckdb}\n\n{datasets}\n"
        )
        cut, rows = count_truncated(files)
        if cut:
            longer = _other_name(job, "--max-tokens", str(job.max_tokens * 8), source=self.source())
            click.echo(
                f"{cut} of {rows} answers are truncated by --max-tokens. Longer ones: {longer}",
                err=True,
            )


class Watch:
    """Looks at a run's counts from outside; changes nothing."""

    def __init__(self, stack: Stack, run: RunName) -> None:
        self._run = run
        self._settings = stack.settings()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        self._redis = self._loop.run_until_complete(connect(self._settings, name="local"))
        self._runs = Runs(self._redis, self._settings.limits())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._redis.aclose())
        self._loop.close()

    def counts(self) -> RunCounts | None:
        """Return the run's counts now, None while they cannot be had."""
        try:
            return self._loop.run_until_complete(self._runs.sample(self._run))
        except GenqError:
            return None


@contextmanager
def stack_at(folder: Path, *, keep: bool = False) -> Iterator[Stack]:
    """Give a stack whose servers run; all of it is stopped at the end, however that comes."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    stack = Stack(folder)
    leave = False
    try:
        if ended := stack.claim():
            click.echo(f"Ended {ended} processes that an earlier start had left.", err=True)
        click.echo(f"Starting Redis and the S3 server in {relative(folder)}", err=True)
        stack.start_servers()
        yield stack
        leave = keep
    finally:
        try:
            stack.close(keep_servers=leave)
        except KeyboardInterrupt:  # a second one: now
            processes.end_stack(stack.id, term_seconds=0.0)


def run_job(job: Job) -> int:
    """Bring the stack up, answer the data set, fetch the results, stop the stack.

    Raises:
        GenqError: something cannot be used as asked; all that was started is stopped then, too.
    """
    gguf_file(job.model or DEFAULT_MODEL)  # before anything is started
    started = time.monotonic()
    work: LocalRun | None = None
    fresh, void = not job.folder.exists(), False
    try:
        with stack_at(job.folder, keep=job.keep) as stack:
            work = LocalRun(job, stack)
            if code := work.load():
                void = fresh and not job.keep and work.source() is None
                return code
            if not work.is_done():
                work.generate()
            code = work.prove()
            work.tell(work.fetch(), seconds=time.monotonic() - started)
            if job.keep:
                looking = look_command(
                    stack, f"gen-producer status; gen-producer report {job.run}; rq info"
                )
                click.echo(f"Redis and the S3 server run on: {looking}", err=True)
            return code
    except KeyboardInterrupt as signalled:
        click.echo(_safe_line(job, work.last if work else None), err=True)
        return Exit.TERMINATED if isinstance(signalled, Terminated) else Exit.INTERRUPTED
    finally:
        if void:  # nothing was loaded: it would be listed as a run
            shutil.rmtree(job.folder, ignore_errors=True)
            with suppress(OSError):  # others are there, or it is a folder of the user's
                STATE_FOLDER.rmdir()


def _other_name(job: Job, *more: str, source: str | None = None) -> str:
    """Return the command that was given, with a run name that is free.

    ``source``: the data set, where the command names none.
    """
    words = shlex.split(job.again)
    for option in ("--run", *more[:1]):
        words = _without(words, option)
    taken = (STATE_FOLDER / f"{job.run}-{n}" for n in count(2))
    free = next(folder.name for folder in taken if not folder.exists())
    dataset = [] if job.dataset else [source or "FILE"]
    return shlex.join([*words, *dataset, "--run", free, *more])


def _without(words: list[str], option: str) -> list[str]:
    """Return a command line without an option of one value."""
    kept = []
    passing = iter(words)
    for word in passing:
        if word == option:
            next(passing, None)
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept


def _anew(job: Job) -> str:
    """Return the command that throws the stack away and starts it again."""
    return f"rm -r {shlex.quote(relative(job.folder))} && {job.again}"


def _safe_line(job: Job, look: Look | None) -> str:
    """Say what is safe and how to go on, in one line."""
    safe = "Nothing is lost."
    if look is not None:
        safe = f"{look.stored} of {look.total} are in object storage, "
        safe += f"{look.answered - look.stored} more are kept in Redis; nothing is lost."
    return f"Stopped. {safe} Go on with: {job.again}"


def serve(folder: Path) -> int:
    """Run the servers of a stack until Ctrl-C.

    Raises:
        GenqError: a server ended by itself.
    """
    try:
        with stack_at(folder) as stack:
            click.echo(f"Redis and the S3 server run. To look: {look_command(stack)}", err=True)
            click.echo("Ctrl-C stops them; their data stays.", err=True)
            while stack.servers_alive():
                time.sleep(LOOK_SECONDS)
            raise GenqError("A server ended by itself.", why=f"See the logs in {stack.folder}.")
    except KeyboardInterrupt:
        return Exit.DONE


def end_servers(folder: Path) -> int:
    """End what runs of a stack without an owner.

    Raises:
        ConflictError: it has an owner.
    """
    stack = Stack(folder)
    try:
        ended = stack.claim()
    finally:
        stack.close()
    click.echo(f"Ended {ended} processes." if ended else "Nothing was running.", err=True)
    return Exit.DONE


def one_line(text: str) -> str:
    """Return a text cut to one line of a terminal, without control characters."""
    words = "".join(c if c.isprintable() else " " for c in text)
    return shorten(words, SHOWN_CHARACTERS, placeholder=" ...")


def look_command(stack: Stack, command: str = "gen-producer status; rq info") -> str:
    """Return a shell line that lets commands look at this stack."""
    return f". {relative(stack.env_file)}; {command}"
