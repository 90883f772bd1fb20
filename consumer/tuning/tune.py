"""``gen-consumer tune``: runs a round, or goes on with it, and leaves report and profile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from common.codec import dumps
from common.errors import Exit, UsageError
from common.model import model_name
from common.private import private_folder, write_private
from common.queue.run_state import Runs
from common.s3 import open_store
from consumer import start
from consumer.engine import engine_named
from consumer.engine.honesty import pack, unpack
from consumer.engine.life import first_of
from consumer.stopping import Stopping
from consumer.tuning.board import LiveBoard
from consumer.tuning.live import LiveLoad
from consumer.tuning.opening import (
    TuneOptions,
    base_spec,
    counter,
    model_of_run,
    open_redis,
    pace_for,
    round_folder,
    sample_of,
    space_maker,
)
from consumer.tuning.profiles import profile_dirs, profile_text
from consumer.tuning.report import Facts, as_data, as_markdown, by_name_only, profile_of_round
from consumer.tuning.round import Result, Round, Spent
from consumer.tuning.search import Search
from consumer.tuning.trial import Checks, OwnLoad, random_weights

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from common.audit import RunCounts
    from common.settings import Settings
    from consumer.engine.api import EngineSpec
    from consumer.tuning.prompts import Sample
    from consumer.tuning.results import Trial
    from consumer.tuning.space import Space
    from consumer.tuning.steady import Pace
    from consumer.tuning.trial import Order, Tried


async def tune(settings: Settings, options: TuneOptions) -> Exit:
    """Run a round, or go on with it; print its report.

    Raises:
        GenqError: the round cannot be run as asked.
    """
    if settings.engine != "sglang":
        raise UsageError(
            f"There is nothing to tune in {settings.engine}.",
            why=f"--engine (GENQ_ENGINE) is {settings.engine}; the knobs are SGLang's.",
            fix="gen-consumer tune --gpu 0 --model /models/Qwen3.6-27B --run my-run",
        )
    stopping = Stopping()
    stopping.listen()
    try:
        async with AsyncExitStack() as stack:
            opened: Opened | None = await first_of(
                _open(settings, options, stack, stopping), stopping.wait()
            )
            if opened is None:
                return stopping.code
            work = asyncio.create_task(opened.round.run())
            asked = asyncio.create_task(stopping.wait())
            await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if work.cancelled():
                result = opened.so_far()
                if result is None:
                    return stopping.code
            else:
                result = work.result()
            opened.board.stop()
            await opened.finish(result, stopped=work.cancelled())
            return stopping.code
    finally:
        stopping.deafen()


@dataclass(slots=True)
class Opened:
    """A round with all that it works on."""

    options: TuneOptions
    settings: Settings
    folder: Path
    round: Round
    facts: Facts
    counts: Callable[[], Awaitable[RunCounts | None]]
    space_of: Callable[[Trial], Space]
    board: LiveBoard

    def so_far(self) -> Result | None:
        """Return what a round that was stopped has found; None: not even the defaults."""
        baseline = self.round.search.baseline
        return None if baseline is None else self.round.result(baseline, self.space_of(baseline))

    async def finish(self, result: Result, *, stopped: bool) -> None:
        """Write report and profile, and print the report."""
        counts = await self.counts()
        remaining = None
        if counts is not None:
            remaining = max(0, counts.total - counts.committed - counts.generated - counts.dead)
        facts = replace(self.facts, remaining_items=remaining, stopped=stopped)
        text, data = as_markdown(result, facts), as_data(result, facts)
        profile = profile_of_round(result, facts)
        if profile is not None:
            folder = private_folder(profile_dirs(self.settings.state_dir)[0])
            path = folder / f"{profile.name}.toml"
            write_private(path, profile_text(profile).encode())
            why = by_name_only(result, facts)
            taken = f"only where it is named: {why}" if why else "by itself where it matches"
            text += f"\nProfile {profile.name}, taken {taken}: {path}\n"
            data |= {"profile": profile.name, "profile_path": str(path)}
        write_private(self.folder / "report.md", text.encode())
        write_private(self.folder / "report.json", dumps(data))
        click.echo(dumps(data).decode() if self.options.as_json else text, nl=self.options.as_json)
        click.echo(f"report: {self.folder}/report.md and report.json", err=True)


async def _open(
    settings: Settings, options: TuneOptions, stack: AsyncExitStack, stopping: Stopping
) -> Opened:
    store, client = None, None
    if options.run is not None:
        store = open_store(settings)
        settings = await asyncio.to_thread(
            model_of_run, settings, options.run, store, live=options.live
        )
        client = await open_redis(settings, stack, needed=options.live)
    spec = base_spec(settings, options)
    counts = counter(settings, options, client)
    folder = await round_folder(settings, options, spec, stack)
    spent = Spent(folder / "spent.json", options.clock)  # to read and render prompts takes minutes
    pace = options.pace or pace_for(options.minutes)
    sample = await sample_of(options, spec, store, await counts())
    checks = Checks(on=settings.honesty, random_weights=random_weights(options.flags))
    answers = folder / "answers.json"
    if answers.is_file():
        checks.record = unpack(answers.read_bytes())
    board = stack.enter_context(LiveBoard())
    desk = _Desk(settings, options, spec, sample, pace, checks, board, folder, spent)
    tried: Tried = desk.own_load()
    if options.live and options.run and client is not None and store is not None:
        tried = LiveLoad(
            settings=settings,
            engine=engine_named(settings.engine),
            spec=spec,
            run=options.run,
            redis=client,
            runs=Runs(client, settings.limits()),
            store=store,
            pace=pace,
            checks=checks,
            port=start.free_port,
            hurry=stopping.hurried,
            clock=options.clock,
            seen=board.seen,
        )
    one = await asyncio.to_thread(desk.round, _Keeping(tried, checks, answers))
    return Opened(options, settings, folder, one, desk.facts, counts, one.space_of, board)


@dataclass(frozen=True, slots=True)
class _Desk:
    """What a round is made of."""

    settings: Settings
    options: TuneOptions
    spec: EngineSpec
    sample: Sample
    pace: Pace
    checks: Checks
    board: LiveBoard
    folder: Path
    spent: Spent

    def own_load(self) -> OwnLoad:
        return OwnLoad(
            engine=engine_named(self.settings.engine),
            spec=self.spec,
            sample=self.sample,
            pace=self.pace,
            checks=self.checks,
            port=start.free_port,
            clock=self.options.clock,
            seen=self.board.seen,
        )

    def round(self, tried: Tried) -> Round:
        """Return the round, its journal opened (blocks on the disk)."""
        options = self.options
        return Round(
            search=Search(self.folder / "journal.log"),
            tried=tried,
            space_of=space_maker(options, self.spec, self.sample),
            pace=self.pace,
            minutes=options.minutes,
            spent=self.spent,
            clock=options.clock,
            board=self.board,
            start_seconds=self.settings.start_seconds,
            most_trials=options.most_trials,
            soaks=options.soaks,
        )

    @property
    def facts(self) -> Facts:
        return Facts(
            model=model_name(self.spec.model),
            base=self.spec.flags,
            sample=self.sample.about,
            minutes=self.options.minutes,
            command=self.options.command(self.spec.model),
            gpu=self.options.gpu,
            price=self.options.price,
            live=self.options.live,
        )


@dataclass(frozen=True, slots=True)
class _Keeping:
    """Runs trials, and keeps the answers of the first accepted server for later calls."""

    tried: Tried
    checks: Checks
    path: Path

    async def __call__(self, order: Order) -> Trial:
        trial = await self.tried(order)
        if self.checks.record and not self.path.is_file():
            write_private(self.path, pack(self.checks.record))
        return trial
