"""Profiles: launch flags and window that were measured, kept by model family, card and release.

One TOML file a profile. The shipped ones lie in ``profiles/`` beside this file; a user's own in
``profiles/`` of the state folder (there the tuner puts its) or in ``~/.config/genq/profiles``, and
come first. One that changes what a model answers is never taken by itself.
"""

from __future__ import annotations

import operator
import os
import re
import tomllib
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UsageError
from common.nearest import did_you_mean
from consumer.engine.sglang_flags import version_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from consumer.tuning.model import ModelShape

SHIPPED = Path(__file__).with_name("profiles")
_BILLION = 1e9
ANY = (0.0, float("inf"))
RANGES = ("parameters_billions", "weights_gigabytes")
_COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
Origin = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Match:
    """Where a profile belongs. Empty: anywhere."""

    family: str = ""  # model_type of the model's text part, without "_text"
    parameters_billions: tuple[float, float] = ANY
    weights_gigabytes: tuple[float, float] = ANY  # on the card, which tells FP8 from BF16
    card: str = ""  # a name of consumer.tuning.cards
    sglang: str = ""  # as in ">=0.5.14,<0.6"

    def misses(self, shape: ModelShape | None, card: str, version: str) -> list[str]:
        """Return in words what does not fit, nothing where all does."""
        found = []
        if self.family and (shape is None or family_of(shape) != self.family):
            found.append(f"the model's family is {family_of(shape) or 'unknown'}")
        low, high = self.parameters_billions
        if shape is not None and not low <= shape.parameters / _BILLION <= high:
            found.append(f"the model has {shape.parameters / _BILLION:.1f} billion parameters")
        low, high = self.weights_gigabytes
        if shape is not None and not low <= shape.weight_bytes / _BILLION <= high:
            found.append(f"the model's weights take {shape.weight_bytes / _BILLION:.1f} GB")
        if self.card and self.card != card:
            found.append(f"the card is {card or 'unknown'}")
        if self.sglang and not in_range(version, self.sglang):
            found.append(f"SGLang is {version or 'not installed'}")
        return found


@dataclass(frozen=True, slots=True)
class Profile:
    """Flags in SGLang's newest names, and how they came about."""

    name: str
    flags: tuple[str, ...]
    match: Match
    about: str = ""
    window: int | None = None  # most requests in flight; None: the engine's limit and a bit
    changes_outputs: bool = False
    auto: bool = True  # taken by itself where it matches
    origin: Origin = field(default_factory=dict)
    path: Path | None = None

    @property
    def gain(self) -> float:
        """How many times the defaults' tokens a second, 1 where that is not told."""
        before = _number(self.origin, "tokens_per_second_before")
        return _number(self.origin, "tokens_per_second") / before if before else 1.0

    @property
    def shipped(self) -> bool:
        """Whether it came with the package."""
        return self.path is not None and self.path.parent == SHIPPED


def family_of(shape: ModelShape | None) -> str:
    """Return the name by which profiles know a model's family."""
    return shape.family.removesuffix("_text") if shape else ""


def in_range(version: str, wanted: str) -> bool:
    """Return whether a release is within a range such as ``>=0.5.14,<0.6``.

    Raises:
        ValueError: the range is not written so.
    """
    release = version_tuple(version)
    bounds = [_bound(part) for part in wanted.split(",")]
    return bool(release) and all(compare(release, bound) for compare, bound in bounds)


def _bound(text: str) -> tuple[Callable[[Any, Any], bool], tuple[int, ...]]:
    match = re.fullmatch(r"\s*(>=|<=|==|>|<)\s*(\d+(?:\.\d+)*)\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is no bound such as >=0.5.14")
    return _COMPARE[match[1]], version_tuple(match[2])


def profile_dirs(state_dir: Path) -> tuple[Path, ...]:
    """Return where profiles lie, the strongest first; the tuner writes to the first."""
    config = os.environ.get("XDG_CONFIG_HOME")
    home = Path(config) if config else Path.home() / ".config"
    return (state_dir / "profiles", home / "genq" / "profiles", SHIPPED)


def load_profiles(folders: Iterable[Path]) -> list[Profile]:
    """Return all profiles, the strongest first; of one name only the first. Reads files.

    Raises:
        UsageError: a file is no profile; names the file and what is wrong.
    """
    found: dict[str, Profile] = {}
    for folder in folders:
        here = [read_profile(path) for path in sorted(folder.glob("*.toml"))]
        for profile in sorted(here, key=lambda one: -one.gain):
            found.setdefault(profile.name, profile)
    return list(found.values())


def choose(
    profiles: Iterable[Profile], shape: ModelShape | None, card: str, version: str
) -> Profile | None:
    """Return the first profile that matches and may be taken by itself, or None."""
    for profile in profiles:
        able = profile.auto and not profile.changes_outputs
        if able and not profile.match.misses(shape, card, version):
            return profile
    return None


def profile_named(profiles: Iterable[Profile], name: str) -> Profile:
    """Return the profile of that name, or the one in the file of that path.

    Raises:
        UsageError: there is none, or the file is none.
    """
    if name.endswith(".toml"):
        return read_profile(Path(name))
    known = {profile.name: profile for profile in profiles}
    if name in known:
        return known[name]
    raise UsageError(
        f"There is no profile {name}{did_you_mean(name, known)}",
        why="The known ones: " + (", ".join(known) or "none") + ".",
        fix="gen-consumer profiles list",
    )


def read_profile(path: Path) -> Profile:
    """Return the profile in a file.

    Raises:
        UsageError: it is not there, or is no profile; says what is wrong.
    """
    try:
        return profile_of(tomllib.loads(path.read_text(encoding="utf-8")), path)
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"{path} is not a profile.",
            why=what,
            fix="Compare it with: gen-consumer profiles show h200-qwen3.6-27b",
        ) from error


def profile_of(data: Mapping[str, Any], path: Path | None = None) -> Profile:
    """Return the profile that a TOML document describes.

    Raises:
        KeyError, TypeError, ValueError: it describes none.
    """
    known = {"name", "about", "flags", "window", "changes_outputs", "auto", "match", "origin"}
    if extra := sorted(set(data) - known):
        raise ValueError(f"{extra[0]} is no field of a profile")
    flags = data["flags"]
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        raise TypeError("flags is not a list of words")
    profile = Profile(
        name=str(data["name"]),
        flags=tuple(flags),
        match=_match(_table(data, "match")),
        about=str(data.get("about", "")),
        window=_window(data.get("window")),
        changes_outputs=_switch(data, "changes_outputs", default=False),
        auto=_switch(data, "auto", default=True),
        origin={name: _plain(value) for name, value in _table(data, "origin").items()},
        path=path,
    )
    _ = profile.gain  # raises what would else be raised to whoever lists or chooses profiles
    return profile


def _table(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise TypeError(f"{name} is not a table: it is {table!r}")
    return dict(table)


def _match(where: dict[str, Any]) -> Match:
    parameters, weights = (_range(name, where.pop(name, ANY)) for name in RANGES)
    for name, value in where.items():
        if not isinstance(value, str):
            raise TypeError(f"match.{name} is not a text: it is {value!r}")
    match = Match(parameters_billions=parameters, weights_gigabytes=weights, **where)
    if match.sglang:
        in_range("0", match.sglang)
    return match


def _window(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
        raise TypeError(f"window is not a whole number: it is {value!r}")
    return max(1, int(value))


def _switch(data: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = data.get(name, default)
    if not isinstance(value, bool):
        raise TypeError(f"{name} is neither true nor false: it is {value!r}")
    return value


def _range(name: str, pair: Any) -> tuple[float, float]:
    try:
        low, high = pair
        return float(low), float(high)
    except (TypeError, ValueError) as error:
        raise TypeError(f"match.{name} is not two numbers: it is {pair!r}") from error


def _number(origin: Origin, name: str) -> float:
    try:
        return float(origin.get(name) or 0)
    except ValueError as error:
        raise ValueError(f"origin.{name} is not a number: it is {origin[name]!r}") from error


def _plain(value: Any) -> str | int | float:
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value if isinstance(value, int | float) else str(value)


def profile_text(profile: Profile) -> str:
    """Return a profile as TOML; :func:`read_profile` reads it back equal."""
    match = profile.match
    lines = [f"name = {_toml(profile.name)}", f"about = {_toml(profile.about)}", "flags = ["]
    lines += [f"  {_toml(flag)}," for flag in profile.flags]
    lines.append("]")
    if profile.window is not None:
        lines.append(f"window = {profile.window}")
    lines += [f"{name} = {_toml(getattr(profile, name))}" for name in ("changes_outputs", "auto")]
    lines += ["", "[match]"]
    for name in ("family", "card", "sglang"):
        if getattr(match, name):
            lines.append(f"{name} = {_toml(getattr(match, name))}")
    for name in RANGES:
        low, high = getattr(match, name)
        if (low, high) != ANY:
            lines.append(f"{name} = [{low:g}, {high:g}]")
    lines += ["", "[origin]"]
    lines += [f"{name} = {_toml(value)}" for name, value in profile.origin.items()]
    return "\n".join(lines) + "\n"


def _toml(value: str | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\u{ord(m.group()):04x}", escaped) + '"'
