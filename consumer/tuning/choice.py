"""Which profile a consumer takes, and its engine's settings with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.errors import UsageError
from consumer.engine.gpu import gpu_facts
from consumer.engine.launch import RUNNING_FLAG
from consumer.engine.sglang_flags import installed_version
from consumer.tuning.cards import card_named
from consumer.tuning.model import ModelShape, read_shape
from consumer.tuning.profiles import Profile, choose, load_profiles, profile_dirs, profile_named
from consumer.tuning.serving import moves_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumer.engine.api import EngineSpec

AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a profile is matched against. "" and None: not known here."""

    shape: ModelShape | None
    card: str
    version: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The profile that was taken, None for none, and why, in words for the log."""

    spec: EngineSpec
    profile: Profile | None
    why: str


def surroundings(model: str, gpu: int | None) -> Surroundings:
    """Look at the model's folder, the card and the installed release (blocks; asks NVML)."""
    try:
        shape: ModelShape | None = read_shape(model)
    except UsageError:
        shape = None
    facts = gpu_facts(gpu) if gpu is not None else None
    card = card_named(facts.name) if facts else None
    return Surroundings(shape, card.name if card else "", installed_version())


def choose_profile(spec: EngineSpec, wanted: str, here: Surroundings) -> Choice:
    """Return ``spec`` with the flags and window of the profile that is wanted.

    Args:
        spec: what the user asked for; its own flags come after the profile's, so they win.
        wanted: a profile's name or file, ``auto`` (the first that matches, unless the user gives
            flags about memory), or ``none``.
        here: where it would run.

    Raises:
        UsageError: there is no such profile, or a file is none.
    """
    if wanted == NONE:
        return Choice(spec, None, "none was wanted")
    profiles = load_profiles(profile_dirs(spec.state_dir))
    if wanted != AUTO:
        profile = profile_named(profiles, wanted)
        misses = profile.match.misses(here.shape, here.card, here.version)
        why = "it was named" + (f", though {'; '.join(misses)}" if misses else "")
        return Choice(with_profile(spec, profile), profile, why)
    if own := _own_memory_flags(spec.flags):
        return Choice(spec, None, f"{own} was given")
    found = choose(profiles, here.shape, here.card, here.version)
    if found is None:
        return Choice(spec, None, "none matches model, card and release")
    return Choice(with_profile(spec, found), found, "it matches model, card and release")


def with_profile(spec: EngineSpec, profile: Profile) -> EngineSpec:
    """Return ``spec`` with a profile's window, and its flags before those of ``spec``.

    A server that is only attached to has its flags already. The window was measured with the
    profile's running requests: with others it says nothing.
    """
    if spec.url is not None:
        return replace(spec, window=profile.window, profile=profile.name)
    flags, window = profile.flags, profile.window
    if spec.max_running is not None:
        flags = without(flags, RUNNING_FLAG)
    if spec.max_running is not None or without(spec.flags, RUNNING_FLAG) != spec.flags:
        window = None
    if spec.context is not None:
        flags = without(flags, "--context-length")
    return replace(spec, flags=(*flags, *spec.flags), window=window, profile=profile.name)


def without(flags: Sequence[str], name: str) -> tuple[str, ...]:
    """Return flags without one of them, and without its value if that is a word of its own."""
    kept: list[str] = []
    words = list(flags)
    while words:
        word = words.pop(0)
        if word == name:
            if words and not words[0].startswith("--"):
                words.pop(0)
        elif not word.startswith(name + "="):
            kept.append(word)
    return tuple(kept)


def _own_memory_flags(flags: Sequence[str]) -> str:
    """Return the first flag of the user's that a profile would contradict, or ""."""
    return next((word for word in flags if moves_memory(word)), "")
