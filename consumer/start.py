"""Opens everything that a consumer needs, runs it, and closes everything again."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import structlog

from common.errors import ConflictError, Exit, UsageError
from common.no_such_run import not_in_redis
from common.patience import once_there
from common.queue.run_state import Runs
from common.redis_client import connect, connect_sync, log_weakness
from common.s3 import open_store
from common.telemetry.metrics import serve_metrics
from common.telemetry.pulse import beating
from consumer.daemon import Consumer, Parts, Plan, Signals
from consumer.engine import engine_named
from consumer.engine.api import EngineSpec
from consumer.engine.honesty import Honesty
from consumer.engine.sglang_flags import installed_version
from consumer.engine.supervisor import StartBudget, Supervisor
from consumer.metrics import ConsumerMetrics
from consumer.reporter import Reporter
from consumer.stopping import Stopping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.ids import RunName
    from common.settings import Settings
    from consumer.reporter import Worker
    from consumer.tuning.choice import Choice

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Options:
    """What a consumer's command line says beyond the settings."""

    gpu: int | None = None
    url: str | None = None
    runs: tuple[RunName, ...] = ()
    burst: bool = False
    max_running: int | None = None
    context: int | None = None
    flags: tuple[str, ...] = ()
    reproducible: bool = False


def engine_spec(settings: Settings, options: Options) -> EngineSpec:
    """Return which engine to launch, or to attach to.

    Raises:
        UsageError: no model was named, or the URL holds a secret.
    """
    if not settings.model:
        raise UsageError(
            "No model was named.",
            why="Neither --model nor GENQ_MODEL is set.",
            fix="gen-consumer --gpu 0 --model Qwen/Qwen3.6-27B",
        )
    if options.url and "@" in options.url:
        raise UsageError(
            "--url must not hold a user or a key.",
            why="It is shown in messages and in process lists.",
            fix="Give the server's key as GENQ_ENGINE_KEY.",
        )
    return EngineSpec(
        model=settings.model,
        gpu=options.gpu,
        url=options.url,
        port=free_port(),
        api_key=_key(settings) if options.url else secrets.token_hex(16),
        state_dir=settings.state_dir,
        max_running=options.max_running,
        context=options.context,
        flags=options.flags,
        reproducible=options.reproducible,
    )


def profiled(settings: Settings, spec: EngineSpec) -> EngineSpec:
    """Return the engine's settings with the profile that is wanted; looks at model and GPU.

    Raises:
        UsageError: there is no such profile.
    """
    choice = _choice(settings, spec)
    if choice is None:
        return spec
    log.info(
        "engine profile",
        profile=choice.profile.name if choice.profile else "none",
        why=choice.why,
        flags=" ".join(choice.profile.flags) if choice.profile else "",
    )
    return choice.spec


def _choice(settings: Settings, spec: EngineSpec) -> Choice | None:
    """Return the profile chosen for an engine; None: profiles are not for it.

    One that is attached to takes only the window, and only of a profile that was named.
    """
    named = settings.profile not in {"auto", "none"}
    if settings.engine != "sglang" or (spec.url is not None and not named):
        return None
    from consumer.tuning.choice import choose_profile, surroundings  # noqa: PLC0415 - only SGLang

    return choose_profile(spec, settings.profile, surroundings(spec.model, spec.gpu))


def print_command(settings: Settings, options: Options) -> Exit:
    """Print how the engine would be started, as a shell script.

    Raises:
        UsageError: there is no such profile, or no start by hand for this engine.
    """
    from consumer.tuning.script import script  # noqa: PLC0415 - only for this

    choice = None if options.url else _choice(settings, engine_spec(settings, options))
    if choice is None:
        raise UsageError(
            "There is no start by hand to print.",
            why="--print-command is for SGLang, launched here; this is another engine, or a URL.",
            fix="gen-consumer --gpu 0 --model /models/Qwen3.6-27B --print-command",
        )
    click.echo(script(choice, installed_version()), nl=False)
    return Exit.DONE


def _plan(settings: Settings, options: Options) -> Plan:
    return Plan(
        runs=options.runs,
        burst=options.burst,
        renew_seconds=settings.renew_seconds,
        drain_seconds=settings.drain_seconds,
    )


def _key(settings: Settings) -> str:
    return settings.engine_key.get_secret_value() if settings.engine_key else ""


def free_port() -> int:
    """Return a port of loopback that is free now. The engine's start finds out if it still is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def worker_name(spec: EngineSpec) -> str:
    """Return a new worker name that says where the consumer is."""
    host = socket.gethostname().split(".")[0]
    place = "cpu" if spec.gpu is None else f"gpu{spec.gpu}"
    return f"{host}-{place}-{os.getpid()}-{secrets.token_hex(2)}"


async def serve(
    settings: Settings,
    options: Options,
    *,
    stopping: Stopping | None = None,
    worker: Worker | None = None,
    signals: Signals | None = None,
    budget: StartBudget | None = None,
) -> Exit:
    """Run a consumer until it is stopped; return its exit code.

    ``worker``: RQ's own pool already made one. ``budget``: else what the settings say.

    Raises:
        GenqError: Redis, storage or the engine cannot be used as asked.
    """
    stopping = stopping or Stopping()
    spec = await asyncio.to_thread(profiled, settings, engine_spec(settings, options))
    engine = engine_named(settings.engine)
    store = open_store(settings)  # a missing name is said before any wait for Redis
    redis = await once_there(
        lambda: connect(settings, name="consumer", writes=True, warn=log_weakness),
        seconds=settings.wait_seconds,
    )
    stopping.listen()
    try:
        runs = Runs(redis, settings.limits())
        if options.burst:
            await _refuse_unknown(runs, options.runs)
        if spec.url is None:  # what cannot be launched at all is said here, as what it is
            await asyncio.to_thread(engine.launch, spec)
        reporter = await asyncio.to_thread(_reporter, settings, spec, worker)
        honesty = Honesty() if settings.honesty else None
        parts = Parts(
            redis=redis,
            runs=runs,
            limits=settings.limits(),
            store=store,
            engine=engine,
            spec=spec,
            supervisor=Supervisor(
                engine,
                spec,
                budget=budget or StartBudget(settings.start_seconds),
                check=honesty,
            ),
            reporter=reporter,
            honesty=honesty,
        )
        consumer = Consumer(parts, _plan(settings, options), stopping, signals)
        metrics = ConsumerMetrics(consumer, parts.supervisor)
        async with beating() as pulse:
            with serve_metrics(settings, metrics.read, healthy=lambda: pulse.alive):
                return await consumer.run()
    finally:
        stopping.deafen()
        await redis.aclose()


def _reporter(settings: Settings, spec: EngineSpec, worker: Worker | None) -> Reporter:
    if worker is not None:
        return Reporter(worker)
    return Reporter.connect(connect_sync(settings, name="reporter"), worker_name(spec))


async def _refuse_unknown(runs: Runs, asked: Sequence[RunName]) -> None:
    """Refuse a burst that none of its runs is there for, before minutes of an engine's start.

    Without a burst it is right to be there before a run is.

    Raises:
        UsageError: that is so.
    """
    known = {info.run for info in await runs.list()} if asked else set()
    if asked and known.isdisjoint(asked):
        raise not_in_redis(asked[0], known)


def gpus_of(settings: Settings) -> list[int]:
    """Return the GPUs that ``GENQ_GPUS`` lists.

    Raises:
        UsageError: it is empty, or not a list of numbers.
    """
    try:
        gpus = [int(part) for part in settings.gpus.split(",") if part.strip()]
    except ValueError:
        gpus = []
    if not gpus:
        raise UsageError(
            "GENQ_GPUS names no GPUs.",
            why=f"It is {settings.gpus!r}.",
            fix="export GENQ_GPUS=0,1,2,3",
        )
    return gpus


def serve_for_pool(
    settings: Settings, worker: Worker, runs: Sequence[RunName], *, burst: bool
) -> Exit:
    """Serve the first GPU of ``GENQ_GPUS`` that no consumer has.

    Its metrics are on ``GENQ_METRICS_PORT`` plus the GPU's number, as all share that setting.

    Raises:
        ConflictError: every one of them is taken.
        GenqError: as :func:`serve`.
    """
    for gpu in (gpus := gpus_of(settings)):
        options = Options(gpu=gpu, runs=tuple(runs), burst=burst)
        port = settings.metrics_port and settings.metrics_port + gpu
        its = settings.model_copy(update={"metrics_port": port})
        try:
            return asyncio.run(
                serve(its, options, stopping=Stopping(forgive_seconds=1.0), worker=worker)
            )
        except ConflictError:
            continue
    raise ConflictError(
        "Every GPU of GENQ_GPUS is taken.",
        why=f"GENQ_GPUS is {settings.gpus}: {len(gpus)} GPUs, each with a consumer.",
        fix=f"rq worker-pool RUN -n {len(gpus)} -w consumer.reporter.Worker",
    )
