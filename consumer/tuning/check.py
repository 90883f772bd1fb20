"""``gen-consumer check``: the honesty check of an engine, as a command."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from common.codec import dumps
from common.errors import EngineError, Exit, UsageError
from common.no_such_run import not_in_redis
from common.queue.run_list import OVER
from common.queue.run_state import Runs
from common.queue.same_run import refuse_other_store
from common.redis_client import connect
from common.s3 import open_store
from consumer import start
from consumer.agreement import Agreement, Came
from consumer.engine import engine_named
from consumer.engine.life import first_of
from consumer.engine.supervisor import Supervisor
from consumer.leases.catalogue import mismatch
from consumer.stopping import Stopping
from consumer.tuning.trial import Checks, once_only, random_weights, to_the_end

if TYPE_CHECKING:
    from common.ids import RunName
    from common.settings import Settings
    from consumer.engine.api import Engine, EngineFacts, EngineSpec
    from consumer.engine.honesty import Honesty
    from consumer.engine.honesty_paths import Paths
    from consumer.engine.http import EngineHttp

JSON_VERSION = 1
_WORDS = {
    Came.AGREED: "agrees with the first engine of {run}",
    Came.FIRST: "is the first engine of {run}: later ones are compared with its answers",
    Came.UNREADABLE: "was not compared: the record of {run}'s first engine cannot be read."
    " Consumers serve the run all the same; to begin a new record, delete engine.json beside its"
    " run.json and the Redis key genq:reference:{run}",
    Came.NOTHING_IN_COMMON: "was not compared: the first engine of {run} was asked other prompts,"
    " by another release or in another way",
    Came.NO_RECORD: "was not compared: {run} is over, and has no record of its first engine",
}
_SAID = (None, Came.AGREED, Came.FIRST)  # beside these something was asked for that was not done


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What the command line says beyond the settings."""

    gpu: int | None
    url: str | None = None
    run: RunName | None = None
    as_json: bool = False
    flags: tuple[str, ...] = ()


@dataclass(slots=True)
class _Timed:
    """The check, and how long it took."""

    checks: Checks
    honesty: Honesty | None = None
    seconds: float = 0.0

    async def __call__(
        self, engine: Engine, http: EngineHttp, spec: EngineSpec, facts: EngineFacts
    ) -> None:
        began = time.monotonic()
        self.honesty = self.checks.fresh(facts.vocab_size)
        assert self.honesty is not None
        await self.honesty(engine, http, spec, facts)
        self.seconds = time.monotonic() - began


async def check(settings: Settings, options: CheckOptions) -> Exit:
    """Start an engine as a consumer would, or attach to one; check it, and print what it said.

    With a run, it is also compared with the run's first engine; where there was none, its answers
    are left there as the reference, as a consumer's would be. Ends with 7 where there was nothing
    to compare with.

    Raises:
        UnfitError: the engine contradicts itself.
        EngineError: it cannot be started, gives no answers to judge, or answers otherwise than the
            run's first one.
        UsageError: the run is not for this engine, or its weights are random.
    """
    stopping = Stopping()
    stopping.listen()
    try:
        done: Exit | None = await first_of(_checked(settings, options), stopping.wait())
        return stopping.code if done is None else done
    finally:
        stopping.deafen()


async def _checked(settings: Settings, options: CheckOptions) -> Exit:
    asked = start.Options(gpu=options.gpu, url=options.url, flags=options.flags)
    spec = await asyncio.to_thread(start.profiled, settings, start.engine_spec(settings, asked))
    timed = _Timed(Checks(random_weights=random_weights(spec.flags)))
    if options.run is not None and timed.checks.random_weights:
        raise UsageError(
            "Random weights are not compared with a run's first engine.",
            why="They answer nothing, and what they say could become the run's reference.",
            fix="Leave out --run, or the flag that loads random weights.",
        )
    supervisor = Supervisor(
        engine_named(settings.engine),
        spec,
        budget=replace(once_only(settings.start_seconds), poll_seconds=1.0),
        check=timed,
    )
    try:
        await supervisor.start()
        facts = await supervisor.wait_ready()
        came = await _compared(settings, options.run, timed, facts) if options.run else None
    finally:
        await to_the_end(supervisor.stop(now=True))
    _show(options, timed, facts, came)
    return Exit.DONE if came in _SAID else Exit.CONFLICT


async def _compared(settings: Settings, run: RunName, timed: _Timed, facts: EngineFacts) -> Came:
    """Compare with the run's first engine; return what came of it."""
    async with AsyncExitStack() as stack:
        client = await connect(settings, name="check", writes=True)
        stack.push_async_callback(client.aclose)
        runs = Runs(client, settings.limits())
        info = await runs.get(run)
        if info is None:
            raise not_in_redis(run, [one.run for one in await runs.list()])
        store = open_store(settings)
        refuse_other_store(info, store.url)
        if why := mismatch(info, facts):
            raise UsageError(
                f"Run {run} is not for this engine.",
                why=f"{why[0].upper()}{why[1:]}.",
                fix=f"Its own model, with its tokenizer: gen-consumer check --run {run}"
                f" --model {info.model} ...",
            )
        # Nobody serves a run that is over, so nobody need be compared with this engine.
        agreement = Agreement(runs, timed.honesty, store, offers=info.state not in OVER)
        compared = await agreement.compare(info)
        if compared.came is Came.DIFFERS:
            raise EngineError(
                f"The engine answers otherwise than the first one of {run}.",
                why=compared.why,
                fix="Serve it with the engine, release and flags that it was begun with.",
            )
    return compared.came


def _show(options: CheckOptions, timed: _Timed, facts: EngineFacts, came: Came | None) -> None:
    assert timed.honesty is not None
    assert timed.honesty.paths is not None
    answers, paths = timed.honesty.answers, timed.honesty.paths
    if options.as_json:
        body = {
            "version": JSON_VERSION,
            "honest": True,
            "engine": f"{facts.engine} {facts.version}",
            "model": facts.model,
            "seconds": round(timed.seconds, 2),
            "run": options.run,
            "compared": came,
            "random_weights": timed.checks.random_weights,
            "paths": asdict(paths),
            "answers": [
                {
                    "prompt": probe.prompt,
                    "text": probe.text,
                    "mean_logprob": round(sum(probe.logprobs) / len(probe.logprobs), 4),
                }
                for probe in answers
            ],
        }
        click.echo(dumps(body).decode())
        return
    click.echo(
        f"Honest: {facts.engine} {facts.version} with {facts.model} says the same {_ways(paths)}"
        f" ({timed.seconds:.1f} s)."
    )
    if timed.checks.random_weights:
        click.echo("Its weights are random: whether it knows a language was not asked.")
    for doubt in paths.doubts:
        click.echo(doubt)
    if came is not None:
        click.echo(f"It {_WORDS[came].format(run=options.run)}.")
    for probe in answers:
        click.echo(f"  {probe.prompt}\n    {probe.text!r}")


def _ways(paths: Paths) -> str:
    """Return the ways that were compared, with how much came from the cache."""
    if paths.cached != "exercised":
        return "asked again and in a crowd"
    count = "" if paths.cached_tokens is None else f" ({paths.cached_tokens:,} prompt tokens)"
    first = "uncached" if paths.uncached == "exercised" else "asked first"
    return f"{first}, cached{count} and in a crowd"
