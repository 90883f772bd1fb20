"""What a run would take of GPUs, time and money, by figures that the user gives or a run left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.codec import loads
from common.errors import InputError, StoreError
from common.ids import run_name
from common.no_such_run import not_in_store
from common.objectstore import ObjectMissingError, RunPaths

if TYPE_CHECKING:
    from common.objectstore import ObjectStore
    from producer.plan.survey import Survey

_SECONDS_AN_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Rates:
    """What the user says of machines: generated tokens per second of one GPU, and its price."""

    tokens_per_second: float | None = None
    gpus: int = 1
    price: float | None = None  # of a GPU for an hour, in any currency


@dataclass(frozen=True, slots=True)
class Output:
    """How many tokens would be generated, and how that is known."""

    completions: int
    answers: int  # requests: more than completions where rows have several turns
    mean_tokens: float | None  # of an answer; None: not known
    basis: str  # given | measured | max_tokens | unknown
    origin: str

    @property
    def tokens(self) -> int | None:
        """All tokens to be generated; None: not known."""
        return None if self.mean_tokens is None else round(self.mean_tokens * self.answers)


@dataclass(frozen=True, slots=True)
class Cost:
    """What that takes."""

    gpu_hours: float
    wall_hours: float
    price: float | None


def output_of(
    survey: Survey, samples: int, *, expected: float | None, measured: Measured | None
) -> Output:
    """Return the output to expect: as given, else as measured, else no more than the limits."""
    completions, answers = survey.rows * samples, survey.answers * samples
    if expected is not None:
        return Output(completions, answers, expected, "given", "--expect-tokens")
    if measured is not None:
        origin = f"mean of run {measured.run}, {measured.completions:,} completions"
        return Output(completions, answers, measured.mean_tokens, "measured", origin)
    if survey.answers and not survey.unlimited:
        mean = survey.max_tokens / survey.answers
        return Output(completions, answers, mean, "max_tokens", "max_tokens: no more than this")
    return Output(completions, answers, None, "unknown", "give --expect-tokens or --like")


def cost_of(output: Output, rates: Rates) -> Cost | None:
    """Return what the output costs, or None where a figure is missing."""
    if output.tokens is None or not rates.tokens_per_second:
        return None
    gpu_hours = output.tokens / rates.tokens_per_second / _SECONDS_AN_HOUR
    price = None if rates.price is None else gpu_hours * rates.price
    return Cost(gpu_hours, gpu_hours / rates.gpus, price)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a finished run was seen to generate."""

    run: str
    models: list[str]
    completions: int
    mean_tokens: float


def measured(store: ObjectStore, name: str) -> Measured:
    """Return the mean length of a finished run's completions, from its manifest.

    Raises:
        UsageError: the name is none, or there is no such run.
        InputError: the run is not finished, or committed nothing.
        StoreError: the store cannot be asked, or the manifest is damaged.
    """
    paths = RunPaths(run_name(name))
    try:
        counts = loads(store.get(paths.manifest))["counts"]
        completions, tokens = int(counts["committed"]), int(counts["completion_tokens"])
        models = [str(model) for model in counts["models"]]
    except ObjectMissingError as error:
        if store.stat(paths.run_json) is None:
            fix = "gen-producer status    lists the runs    (or give --expect-tokens N)"
            raise not_in_store(store, paths.run, fix=fix) from error
        raise InputError(
            f"Run {name} is not finished, so nothing is known of its completions yet.",
            why=f"{store.url}/{paths.manifest} is not there.",
            fix="Name a finished run, or give --expect-tokens N.",
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{store.url}/{paths.manifest} cannot be read.", why=f"{error!r}"
        ) from error
    if not completions:
        raise InputError(f"Run {name} has no completion.", fix="Give --expect-tokens N.")
    return Measured(name, models, completions, tokens / completions)
