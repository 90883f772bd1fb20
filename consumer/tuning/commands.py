"""What ``gen-consumer explain`` and ``gen-consumer profiles`` do, once parsed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from common.codec import dumps
from common.errors import Exit, UsageError
from consumer.engine.gpu import gpu_facts
from consumer.tuning.explain import Question, as_json, as_text, card_for, explain
from consumer.tuning.model import read_shape
from consumer.tuning.profiles import (
    RANGES,
    Profile,
    load_profiles,
    profile_dirs,
    profile_named,
    profile_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

JSON_VERSION = 1


def run_explain(
    options: dict[str, Any], flags: Sequence[str], *, model: str, state_dir: Path
) -> Exit:
    """Print a model's memory budget on a card.

    Raises:
        UsageError: no model or card was named, or one of them, or a flag, is not understood.
    """
    if not model:
        raise UsageError(
            "No model was named.",
            why="Neither --model nor GENQ_MODEL is set.",
            fix="gen-consumer explain --model /models/Qwen3.6-27B --card H200",
        )
    named = options["profile"]
    profile = profile_named(load_profiles(profile_dirs(state_dir)), named) if named else None
    card, memory = _card(options, profile)
    question = Question(
        shape=read_shape(model),
        memory_bytes=memory,
        card=card,
        flags=(*(profile.flags if profile else ()), *flags),
        prompt_tokens=options["prompt_tokens"],
        output_tokens=options["output_tokens"],
        accept_length=options["accept_length"],
    )
    answer = explain(question)
    click.echo(dumps(as_json(answer)).decode() if options["as_json"] else as_text(answer))
    return Exit.DONE


def _card(options: dict[str, Any], profile: Profile | None) -> tuple[Any, int]:
    """Return the card that was named; else the profile's; else the one that NVML shows."""
    name, memory = options["card"], options["gpu_memory"]
    if name is None and memory is None and profile is not None and options["gpu"] is None:
        name = profile.match.card or None
    if name is None and memory is None:
        facts = gpu_facts(options["gpu"] or 0)
        if facts is not None:
            return card_for(None, facts.total_bytes)
    return card_for(name, memory)


def run_list(*, state_dir: Path, as_json: bool) -> Exit:
    """Print every profile, the strongest first.

    Raises:
        UsageError: a file is no profile.
    """
    profiles = load_profiles(profile_dirs(state_dir))
    if as_json:
        listed = [profile_json(profile) for profile in profiles]
        click.echo(dumps({"version": JSON_VERSION, "profiles": listed}).decode())
        return Exit.DONE
    wide = max((len(profile.name) for profile in profiles), default=0)
    for profile in profiles:
        match = profile.match
        place = f"{match.family or 'any model'}, {match.card or 'any card'}"
        gain = f"{profile.gain:.2f} x the defaults" if profile.gain != 1 else "no gain told"
        marks = [
            *([] if profile.shipped else ["yours"]),
            *([] if profile.auto else ["only by name"]),
            *(["changes outputs"] if profile.changes_outputs else []),
        ]
        extra = f" ({', '.join(marks)})" if marks else ""
        click.echo(f"{profile.name:<{wide}}  {place}: {gain}{extra}")
    return Exit.DONE


def run_show(name: str, *, state_dir: Path, as_json: bool) -> Exit:
    """Print one profile: as the TOML that it is, or as JSON.

    Raises:
        UsageError: there is none of that name.
    """
    profile = profile_named(load_profiles(profile_dirs(state_dir)), name)
    if as_json:
        click.echo(dumps({"version": JSON_VERSION, **profile_json(profile)}).decode())
    else:
        click.echo(profile_text(profile), nl=False)
    return Exit.DONE


def profile_json(profile: Profile) -> dict[str, Any]:
    """Return a profile as data. Fields are only ever added."""
    data = asdict(profile)
    for name in RANGES:
        low, high = getattr(profile.match, name)
        data["match"][name] = [low, None if high == float("inf") else high]
    data["path"] = str(profile.path) if profile.path else None
    data["gain"] = round(profile.gain, 3)
    data["shipped"] = profile.shipped
    return data
