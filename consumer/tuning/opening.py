"""What a round of tuning is asked, and what it works on: the run, its prompts, its folder."""

from __future__ import annotations

import asyncio
import fcntl
import glob
import hashlib
import os
import secrets
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.errors import ConflictError, QueueError, UsageError
from common.model import model_name
from common.no_such_run import not_in_store
from common.objectstore import ObjectMissingError, RunPaths
from common.private import open_private, private_folder
from common.queue.run_state import Runs
from common.redis_client import connect
from consumer import start
from consumer.engine.api import EngineSpec
from consumer.engine.gpu import gpu_facts
from consumer.engine.sglang_flags import installed_version
from consumer.leases.rundata import read_manifest
from consumer.tuning.cards import GIB, card_named
from consumer.tuning.model import read_shape
from consumer.tuning.prompts import ASSUMED_OUTPUT, Sample, file_sample, random_sample, run_sample
from consumer.tuning.round import LEARNT_ANSWERS
from consumer.tuning.space import Allowed, Lengths, Space
from consumer.tuning.steady import Pace
from consumer.tuning.trial import random_weights

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AsyncExitStack, ExitStack

    import redis.asyncio

    from common.audit import RunCounts
    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.settings import Settings
    from consumer.tuning.results import Trial

FORMAT = 1  # of a round's folder; one of another format is begun anew
_LOCK_SECONDS = 2.0
_MEASURE_SHARE = 1 / 24  # of the minutes, for one measurement
_MEASURE_LEAST, _MEASURE_MOST = 12.0, 60.0


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What the command line says beyond the settings."""

    gpu: int | None
    minutes: float
    run: RunName | None = None
    prompts: str = ""
    live: bool = False
    allow_state_dtype: bool = False
    allow_kv_dtype: bool = False
    card: str | None = None
    price: float | None = None
    fresh: bool = False
    as_json: bool = False
    flags: tuple[str, ...] = ()
    pace: Pace | None = None
    most_trials: int | None = None  # end the search after so many; None: when the minutes end
    soaks: int = 4  # trials of the confirmation: A B A B
    clock: Callable[[], float] = field(default=time.monotonic)

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: there are no prompts, or two kinds of them, or a live round would change
                what the run's items say.
        """
        if bool(self.run) == bool(self.prompts):
            raise UsageError(
                "A round needs prompts: of a run, or others.",
                why="Both --run and --prompts are given." if self.run else "Neither is given.",
                fix="gen-consumer tune --gpu 0 --run my-run    (or: --prompts random:256:256)",
            )
        changing = self.allow_state_dtype or self.allow_kv_dtype or random_weights(self.flags)
        if self.live and changing:
            raise UsageError(
                "A live round keeps what its trials say, so no setting may change that.",
                why="--allow-state-dtype, --allow-kv-dtype or random weights do.",
                fix="Leave them out, or give --run in place of --live.",
            )

    def command(self, model: str) -> str:
        """Return the command line that goes on with this round."""
        said = {
            "--gpu": self.gpu,
            "--minutes": f"{self.minutes:g}",
            "--live" if self.live else "--run": self.run,
            "--prompts": self.prompts or None,
            "--model": None if self.run else model,
            "--card": self.card,
            "--price": self.price,
        }
        words = ["gen-consumer", "tune"]
        words += [
            w for name, value in said.items() if value is not None for w in (name, str(value))
        ]
        words += ["--allow-state-dtype"] * self.allow_state_dtype
        words += ["--allow-kv-dtype"] * self.allow_kv_dtype
        return shlex.join([*words, *(["--", *self.flags] if self.flags else [])])


def pace_for(minutes: float) -> Pace:
    """Return how long each measurement is in a round of so many minutes."""
    seconds = minutes * 60 * _MEASURE_SHARE
    return Pace(measure_seconds=min(_MEASURE_MOST, max(_MEASURE_LEAST, seconds)))


def base_spec(settings: Settings, options: TuneOptions) -> EngineSpec:
    """Return what every trial's server is started with.

    Raises:
        UsageError: no model was named.
    """
    if not settings.model:
        raise UsageError(
            "No model was named.",
            why="Neither --model nor GENQ_MODEL is set, and there is no run that names one.",
            fix="gen-consumer tune --gpu 0 --model /models/Qwen3.6-27B --prompts random:256:256",
        )
    return EngineSpec(
        model=settings.model,
        gpu=options.gpu,
        url=None,
        port=start.free_port(),
        api_key=secrets.token_hex(16),
        state_dir=settings.state_dir,
        flags=options.flags,
    )


def model_of_run(
    settings: Settings, run: RunName, store: ObjectStore, *, live: bool = False
) -> Settings:
    """Return the settings with the run's model, where none was named.

    Raises:
        UsageError: there is no such run, or (``live``) another model was named than it asks for.
    """
    path = RunPaths(run).run_json
    try:
        model = read_manifest(store.get(path), path).settings.model
    except ObjectMissingError as error:
        raise not_in_store(store, run) from error
    if live and settings.model and model_name(settings.model) != model_name(model):
        raise UsageError(
            f"Run {run} is not for {model_name(settings.model)}: it hands nothing out to it.",
            why=f"It asks for {model_name(model)}; --model or GENQ_MODEL names {settings.model}.",
            fix="Leave out --model, and: unset GENQ_MODEL    (the run's own model is taken then)",
        )
    if settings.model:
        return settings
    return settings.model_copy(update={"model": model})


async def open_redis(
    settings: Settings, stack: AsyncExitStack, *, needed: bool
) -> redis.asyncio.Redis | None:
    """Return a connection; None where none is to be had, and the round can do without.

    Raises:
        QueueError: it cannot.
    """
    try:
        client = await connect(settings, name="tune", writes=needed)
    except QueueError:
        if needed:
            raise
        return None  # then nobody knows how many prompts are left, and that is all
    stack.push_async_callback(client.aclose)
    return client


def counter(
    settings: Settings, options: TuneOptions, client: redis.asyncio.Redis | None
) -> Callable[[], Awaitable[RunCounts | None]]:
    """Return what reads the run's counts; they are None where nobody knows them."""

    async def counts() -> RunCounts | None:
        if client is None or options.run is None:
            return None
        try:
            return await Runs(client, settings.limits()).sample(options.run)
        except QueueError:
            if options.live:
                raise
            return None

    return counts


async def sample_of(
    options: TuneOptions, spec: EngineSpec, store: ObjectStore | None, counts: RunCounts | None
) -> Sample:
    """Return the prompts to try with; of a run they come from the store.

    Raises:
        StoreError, InputError, EngineError: they cannot be read, or not rendered.
    """
    if options.run is not None and store is not None:
        taken = counts.generated + counts.committed if counts else 0
        mean = round(counts.completion_tokens / taken) if counts and taken else None
        return await run_sample(store, options.run, spec.model, mean=mean)
    if options.prompts.startswith("random:"):
        return random_sample(options.prompts)
    return await file_sample(Path(options.prompts), spec.model)


def space_maker(options: TuneOptions, spec: EngineSpec, sample: Sample) -> Callable[[Trial], Space]:
    """Return what makes the space of the measured defaults."""
    try:
        shape = read_shape(spec.model)
    except UsageError:
        shape = None  # then nothing is worked out beforehand
    seen = gpu_facts(options.gpu) if options.gpu is not None else None
    card = card_named(options.card or (seen.name if seen else ""))
    memory = seen.total_bytes if seen else card.memory_bytes if card else None
    allowed = Allowed(options.allow_state_dtype, options.allow_kv_dtype, drafts=not options.live)

    def space(baseline: Trial) -> Space:
        output = sample.output_tokens
        if output is None and baseline.answered >= LEARNT_ANSWERS:
            output = round(baseline.output_tokens)
        lengths = Lengths(
            prompt_tokens=sample.prompt_tokens,
            output_tokens=max(1, output or ASSUMED_OUTPUT),
            cached=baseline.cached_share,
        )
        return Space(
            base=spec.flags,
            lengths=lengths,
            default_running=max(1, baseline.max_running),
            shape=shape,
            memory_bytes=memory,
            card=card,
            allowed=allowed,
        )

    return space


async def round_folder(
    settings: Settings, options: TuneOptions, spec: EngineSpec, stack: ExitStack | AsyncExitStack
) -> Path:
    """Return the round's folder, held by this process until the end.

    What was measured holds for this release of SGLang and this card: on others the same command
    begins anew, and says so.

    Raises:
        ConflictError: another process runs this round.
    """
    what = (FORMAT, spec.model, spec.flags, options.gpu, options.run, options.prompts)
    rest = (options.live, options.allow_state_dtype, options.allow_kv_dtype, options.card)
    stem = f"{model_name(spec.model)}-{_digest((what, rest))}"
    where = await asyncio.to_thread(_where, options.gpu)
    folder = settings.state_dir / "tuning" / f"{stem}-{_digest(where)}"
    if not folder.exists():
        _say_anew(folder, stem, where)
    folder = private_folder(folder)
    file = open_private(folder / "lock")
    stack.callback(os.close, file)
    # A child that a killed process was about to start holds its files for a moment longer.
    until = time.monotonic() + _LOCK_SECONDS
    while not _locked(file):
        if time.monotonic() > until:
            raise ConflictError(
                "This round of tuning is under way already.",
                why=f"Another process holds {folder}/lock.",
                fix="Wait for it, or stop it with Ctrl-C and repeat this command: it goes on.",
            )
        await asyncio.sleep(_LOCK_SECONDS / 20)
    if options.fresh:
        for name in ("journal.log", "spent.json", "answers.json"):
            (folder / name).unlink(missing_ok=True)
    return folder


def _digest(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:8]


def _where(gpu: int | None) -> str:
    """Return the release and the card in words (asks NVML)."""
    seen = gpu_facts(gpu) if gpu is not None else None
    card = f"{seen.name}, {round(seen.total_bytes / GIB)} GiB" if seen else "an unknown card"
    return f"SGLang {installed_version() or '(not installed)'} on {card}"


def _say_anew(folder: Path, stem: str, where: str) -> None:
    """Say so where the same command has a round of another release or card, or of unknown ones."""
    if earlier := sorted(folder.parent.glob(f"{glob.escape(stem)}*")):
        old = ", ".join(one.name for one in earlier)
        click.echo(
            f"begun anew, with {where}: what was measured with another release of SGLang or on"
            f" another card does not count ({old} in {folder.parent})",
            err=True,
        )


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
