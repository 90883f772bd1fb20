"""The words around a plan: options in, the screen or the JSON object out."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from common.errors import EngineError, Exit, InputError, UsageError
from common.model import locate_model, model_name
from common.records import Sampling
from common.s3 import open_store
from common.tokens import load_tokens, own_context
from producer.load.lengths import Context, Counter, context_of
from producer.load.rows import ReadOptions
from producer.load.spool import spool_folder
from producer.plan.cost import Rates, cost_of, measured, output_of
from producer.plan.data import Plan, data_of
from producer.plan.survey import Surveyor
from producer.plan.tally import Repeats
from producer.plan.view import screen, summary
from producer.sources.reader import read_rows
from producer.sources.records import Limits
from producer.sources.url import HUB_NAME, STDIN, sources_of

if TYPE_CHECKING:
    from common.objectstore import ObjectStore
    from common.settings import Settings
    from producer.console import Console
    from producer.plan.cost import Measured

# Flags of a plan that `load` has, too.
_MEND = "Mend them, or pass over what cannot be used: --on-error skip"
_LOAD_FLAGS = {
    "model": "--model",
    "samples": "--samples",
    "max_tokens": "--max-tokens",
    "context": "--context",
    "shape": "--format",
    "text_field": "--field",
    "split": "--split",
    "limit": "--limit",
}


def run_plan(
    datasets: tuple[str, ...], options: dict[str, Any], settings: Settings, console: Console
) -> int:
    """Read the data sets and say what a load would find and cost; store nothing.

    Raises:
        UsageError, InputError, StoreError: a source cannot be read.
        InputError: rows cannot be loaded, and ``--on-error`` is stop, or there are none that can,
            or a file cannot be read to its end; said after the plan.
    """
    if not datasets:
        raise UsageError("There is nothing to plan.", fix="gen-producer plan prompts.jsonl")
    like = measured(open_store(settings), options["like"]) if options["like"] else None
    plan = _plan(datasets, options, settings, console, like)
    if like and plan.model and model_name(plan.model) not in map(model_name, like.models):
        console.say(f"Note: run {like.run} was answered by {', '.join(like.models)}.")
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    console.result(screen(plan, ascii_only=ascii_only), data_of(plan))
    if plan.survey.ended:  # `load` passes over none of these
        raise InputError(
            f"Files that cannot be read to their end: {plan.survey.ended:,}.",
            why=f"{summary(plan.survey)}. Nothing was stored or queued.",
            fix="Mend them, get them again, or leave them out.",
        )
    if plan.survey.bad and options["on_error"] == "stop":
        raise InputError(
            f"{plan.survey.bad:,} of {plan.survey.read:,} rows cannot be loaded.",
            why=f"{summary(plan.survey)}. Nothing was stored or queued.",
            fix=_MEND if plan.survey.rows else "Mend them: nothing else is left to load.",
        )
    if not plan.survey.rows:  # load refuses it with the same code
        raise InputError(
            f"{plan.source} holds no row that can be loaded.",
            why=summary(plan.survey) if plan.survey.bad else "It is empty.",
            fix="Look whether it is the right file, and whole.",
        )
    return Exit.DONE


def _plan(
    datasets: tuple[str, ...],
    options: dict[str, Any],
    settings: Settings,
    console: Console,
    like: Measured | None,
) -> Plan:
    model = options["model"] or settings.model
    counter, words, own = _tokenizer(model, options)
    context = context_of(options["context"], model) if model or options["context"] else None
    if context is None and own is not None:
        context = Context(own, "the model itself")
    read = _read_options(options, settings)
    surveyor = Surveyor(
        read,
        counter=counter,
        context=context,
        sampling=Sampling(max_tokens=options["max_tokens"]),
    )

    def open_bucket(bucket: str) -> ObjectStore:
        return open_store(settings.model_copy(update={"store": f"s3://{bucket}"}))

    rows = read_rows(sources_of(datasets, open_bucket, split=options["split"]), read.limits)
    with (
        spool_folder() as folder,
        Repeats(folder) as repeats,
        console.progress("Reading", options["limit"]) as progress,
    ):
        survey = surveyor.survey(rows, repeats, progress=progress)
    expected = options["expect_tokens"]
    output = output_of(survey, options["samples"] or 1, expected=expected, measured=like)
    rates = Rates(options["tokens_per_second"], options["gpus"], options["price"])
    return Plan(
        source=shlex.join(datasets),
        model=model,
        tokenizer_words=words,
        exact=counter is not None,
        context=context,
        own_context=own,
        survey=survey,
        output=output,
        rates=rates,
        cost=cost_of(output, rates),
        load_flags=_load_flags(datasets, options),
    )


def _read_options(options: dict[str, Any], settings: Settings) -> ReadOptions:
    return ReadOptions(
        shape=options["shape"],
        text_field=options["text_field"],
        limit=options["limit"],
        limits=Limits(row_bytes=settings.max_row_bytes),
    )


def _tokenizer(model: str, options: dict[str, Any]) -> tuple[Counter | None, str, int | None]:
    """Return what counts tokens, how that is said, and the model's own context."""
    guess = "estimated from letters (may be off by half):"
    if not model:
        return None, f"{guess} no model is named (--model)", None
    own = None
    try:
        if path := locate_model(model):
            own = own_context(path)
        tokens = load_tokens(str(path) if path else model, download=bool(HUB_NAME.fullmatch(model)))
    except EngineError as error:
        said = filter(None, (guess, error.what, error.why, error.fix))
        return None, "\n".join(said), own
    counter = Counter(tokens, thinking=options["thinking"], keep_answers=False)
    words = f"by {model_name(model)}'s own tokenizer and chat template"
    return counter, words, own or tokens.context_tokens


def _load_flags(datasets: tuple[str, ...], options: dict[str, Any]) -> str:
    words = [
        word
        for name, flag in _LOAD_FLAGS.items()
        if options.get(name) is not None
        for word in (flag, str(options[name]))
    ]
    if datasets[0] == STDIN:  # which names no run
        words += ["--run", "NAME"]
    if options["thinking"] is not None:
        words.append("--thinking" if options["thinking"] else "--no-thinking")
    return f" {shlex.join(words)}" if words else ""
