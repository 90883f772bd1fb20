"""The answers of the honesty check, and which paths through an engine they have really taken.

Told by what the answers say of cached tokens. Tokens that a prompt has in common with another one
(the head of the chat template) do not count: they are cached as soon as the other was answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Taken = Literal["exercised", "not exercised", "not known", "no cache"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One greedy answer to one of the prompts."""

    prompt: str
    way: str
    text: str
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int | None = None  # of its prompt; None: the engine does not say
    prompt_tokens: int | None = None  # None: recorded by a release that did not keep it


@dataclass(frozen=True, slots=True)
class Asked:
    """The answers of each way, each in the order of the prompts."""

    uncached: tuple[Probe, ...]
    cached: tuple[Probe, ...]
    crowd: tuple[Probe, ...]
    shared: Mapping[str, int]  # by prompt: tokens at its beginning that another has as well
    forgotten: bool  # the engine said that it had dropped its cache before


@dataclass(frozen=True, slots=True)
class Paths:
    """Whether answers without a cached prefix, and with one, were among those compared."""

    uncached: Taken
    cached: Taken
    cached_tokens: int | None = None  # of the prompts asked again; None: the engine does not say
    prompt_tokens: int = 0

    def __str__(self) -> str:
        """Return it in words."""
        said = f"uncached {self.uncached}, cached {self.cached}"
        if self.cached_tokens is None or self.cached == "no cache":
            return said
        return f"{said} ({self.cached_tokens:,} of {self.prompt_tokens:,} prompt tokens)"

    @property
    def doubts(self) -> list[str]:
        """What the check says nothing about, one sentence each; empty when it was whole."""
        found = []
        if self.uncached == "not exercised":
            found.append(
                "The uncached path was not exercised: the engine answered from its cache, which it"
                " did not drop. Check an engine that nobody else uses."
            )
        elif self.uncached == "not known":
            found.append(
                "Whether the uncached path was exercised is not known: the engine did not drop its"
                " cache, and does not say what it took from it."
            )
        if self.cached == "not exercised":
            found.append(
                "The cached path was not exercised: the engine has a prefix cache, and took nothing"
                " from it when it was asked the same again."
            )
        elif self.cached == "not known":
            found.append(
                "Whether the cached path was exercised is not known: the engine does not say what"
                " it took from its cache."
            )
        return found


def reused(probe: Probe, shared: Mapping[str, int]) -> bool:
    """Return whether an answer is known to rest on its own prompt's cached prefix."""
    return probe.cached_tokens is not None and probe.cached_tokens > shared.get(probe.prompt, 0)


def paths_of(asked: Asked, *, prefix_cache: bool | None) -> Paths:
    """Return which paths these answers took; ``prefix_cache``: whether the engine has one."""
    counts = [probe.cached_tokens for probe in asked.cached]
    known = [count for count in counts if count is not None]
    return Paths(
        uncached=_uncached(asked),
        cached=_cached(asked, prefix_cache=prefix_cache),
        cached_tokens=sum(known) if len(known) == len(counts) else None,
        prompt_tokens=sum(probe.prompt_tokens or 0 for probe in asked.cached),
    )


def _uncached(asked: Asked) -> Taken:
    if any(reused(probe, asked.shared) for probe in asked.uncached):
        return "not exercised"
    told = all(probe.cached_tokens is not None for probe in asked.uncached)
    return "exercised" if told or asked.forgotten else "not known"


def _cached(asked: Asked, *, prefix_cache: bool | None) -> Taken:
    if any(reused(probe, asked.shared) for probe in asked.cached):
        return "exercised"
    if prefix_cache is False:
        return "no cache"
    told = all(probe.cached_tokens is not None for probe in asked.cached)
    return "not exercised" if told else "not known"
