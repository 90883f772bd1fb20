"""``gen-consumer check``: the honesty check of an engine, as a command."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from common.codec import dumps
from common.errors import EngineError, Exit
from common.no_such_run import not_in_redis
from common.queue.run_state import Runs
from common.queue.same_run import refuse_other_store
from common.redis_client import connect
from common.s3 import open_store
from consumer import start
from consumer.agreement import Agreement
from consumer.engine import engine_named
from consumer.engine.supervisor import Supervisor
from consumer.stopping import Stopping
from consumer.tuning.trial import Checks, once_only, random_weights

if TYPE_CHECKING:
    from common.ids import RunName
    from common.settings import Settings
    from consumer.engine.api import Engine, EngineFacts, EngineSpec
    from consumer.engine.honesty import Honesty
    from consumer.engine.honesty_paths import Paths
    from consumer.engine.http import EngineHttp

JSON_VERSION = 1


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
    are left there as the reference, as a consumer's would be.

    Raises:
        UnfitError: the engine contradicts itself, or the run's first one.
        EngineError: it cannot be started, or gives no answers to judge.
    """
    asked = start.Options(gpu=options.gpu, url=options.url, flags=options.flags)
    spec = await asyncio.to_thread(start.profiled, settings, start.engine_spec(settings, asked))
    timed = _Timed(Checks(random_weights=random_weights(spec.flags)))
    supervisor = Supervisor(
        engine_named(settings.engine),
        spec,
        budget=replace(once_only(settings.start_seconds), poll_seconds=1.0),
        check=timed,
    )
    stopping = Stopping()
    stopping.listen()
    try:
        ready = asyncio.create_task(_ready(supervisor))
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait({ready, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not ready.done():
            ready.cancel()
            return stopping.code
        facts = ready.result()
        compared = await _compared(settings, options, timed)
    finally:
        await supervisor.stop(now=True)
        stopping.deafen()
    _show(options, timed, facts, compared)
    return Exit.DONE


async def _ready(supervisor: Supervisor) -> EngineFacts:
    await supervisor.start()
    return await supervisor.wait_ready()


async def _compared(settings: Settings, options: CheckOptions, timed: _Timed) -> str:
    """Compare with the run's first engine; return in words what came of it."""
    if options.run is None:
        return ""
    async with AsyncExitStack() as stack:
        client = await connect(settings, name="check", writes=True)
        stack.push_async_callback(client.aclose)
        runs = Runs(client, settings.limits())
        info = await runs.get(options.run)
        if info is None:
            raise not_in_redis(options.run, [one.run for one in await runs.list()])
        store = open_store(settings)
        refuse_other_store(info, store.url)
        if why := await Agreement(runs, timed.honesty, store).objection(info):
            raise EngineError(
                f"The engine answers otherwise than the first one of {options.run}.",
                why=why,
                fix="Serve it with the engine, release and flags that it was begun with.",
            )
    return f"agrees with the first engine of {options.run}, or is it"


def _show(options: CheckOptions, timed: _Timed, facts: EngineFacts, compared: str) -> None:
    assert timed.honesty is not None
    assert timed.honesty.paths is not None
    record, paths = timed.honesty.record, timed.honesty.paths
    if options.as_json:
        body = {
            "version": JSON_VERSION,
            "honest": True,
            "engine": f"{facts.engine} {facts.version}",
            "model": facts.model,
            "seconds": round(timed.seconds, 2),
            "run": options.run,
            "random_weights": timed.checks.random_weights,
            "paths": asdict(paths),
            "answers": [
                {
                    "prompt": probe.prompt,
                    "text": probe.text,
                    "mean_logprob": round(sum(probe.logprobs) / len(probe.logprobs), 4),
                }
                for probe in record
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
    if compared:
        click.echo(f"It {compared}.")
    for probe in record:
        click.echo(f"  {probe.prompt}\n    {probe.text!r}")


def _ways(paths: Paths) -> str:
    """Return the ways that were compared, with how much came from the cache."""
    if paths.cached != "exercised":
        return "asked again and in a crowd"
    count = "" if paths.cached_tokens is None else f" ({paths.cached_tokens:,} prompt tokens)"
    first = "uncached" if paths.uncached == "exercised" else "asked first"
    return f"{first}, cached{count} and in a crowd"
