"""Which flags let more requests run at once, and how many then would. Pure.

Each candidate is a change of flags that the arithmetic tries out; those that do not fit, or gain
nothing, are left out. The tuner takes its order and its bounds from here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consumer.tuning.cards import GIB
from consumer.tuning.memory import budget
from consumer.tuning.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumer.tuning.memory import Budget
    from consumer.tuning.model import ModelShape

# Left of the reserve for activations, in no pool: 7.5 GiB were enough on an H200 with chunks of
# 8,192 tokens, so a fraction is never raised so far that less stays free.
SAFE_FREE_BYTES = int(7.5 * GIB)
_MOST_RUNNING = 4096
_MOST_FRACTION = 0.96


@dataclass(frozen=True, slots=True)
class Lift:
    """A change of flags, and what it would give."""

    flags: tuple[str, ...]
    serving: Serving
    running: int
    kv_tokens: int
    changes_outputs: bool
    note: str


def lifts(
    shape: ModelShape, memory_bytes: int, serving: Serving, *, tokens: int
) -> tuple[Lift, ...]:
    """Return the changes that raise running requests, the largest first.

    Args:
        shape: the model.
        memory_bytes: the card's memory.
        serving: the settings to start from.
        tokens: of a request, prompt and answer together, on average; no candidate runs more
            requests than the cache could hold at that length.
    """
    now = budget(shape, memory_bytes, serving)
    found: list[Lift] = []
    for flags, changed, alters, note in _candidates(
        _Start(shape, memory_bytes, serving, now, tokens)
    ):
        then = budget(shape, memory_bytes, changed)
        gains = not now.fits or usable(then, tokens) > usable(now, tokens)
        if then.fits and gains:
            running = usable(then, tokens)
            found.append(Lift(flags, changed, running, then.kv_tokens, alters, note))
    return tuple(sorted(found, key=lambda lift: (lift.changes_outputs, -lift.running)))


def usable(one: Budget, tokens: int) -> int:
    """Return how many requests of ``tokens`` run at once: more would be retracted."""
    return min(one.running, one.kv_tokens // max(1, tokens))


def most_running(shape: ModelShape, memory_bytes: int, serving: Serving, *, tokens: int) -> int:
    """Return the most running requests for which states and cache both have room; 0: none.

    ``serving`` gives the rest; what it says of running requests is not looked at.
    """
    low, high = 0, _MOST_RUNNING
    while low < high:
        middle = (low + high + 1) // 2
        tried = budget(shape, memory_bytes, _asking(serving, middle))
        if tried.fits and usable(tried, tokens) >= middle:
            low = middle
        else:
            high = middle - 1
    return low


def safe_fraction(shape: ModelShape, memory_bytes: int, serving: Serving) -> float:
    """Return the largest memory fraction that leaves activations their room, by estimate."""
    now = budget(shape, memory_bytes, serving)
    spare = now.free_bytes - SAFE_FREE_BYTES
    share = spare / (memory_bytes or 1)
    return round(min(_MOST_FRACTION, max(now.mem_fraction, now.mem_fraction + share)) - 0.0005, 3)


@dataclass(frozen=True, slots=True)
class _Start:
    """The settings that candidates change."""

    shape: ModelShape
    memory_bytes: int
    serving: Serving
    now: Budget
    tokens: int

    def filled(self, changed: Serving) -> tuple[Serving, tuple[str, ...]]:
        """Return the change with as many running requests as it has room for, and the flags."""
        most = most_running(self.shape, self.memory_bytes, changed, tokens=self.tokens)
        asked = _asking(changed, max(1, most))
        flags = ["--max-running-requests", str(asked.max_running)]
        default = changed.resolved(self.memory_bytes, self.shape).graph_batch or 0
        if most > default:
            flags += ["--cuda-graph-max-bs-decode", str(most)]
        return asked, tuple(flags)


# The flags, the settings that they make, whether they change outputs, and a word on them.
_Candidate = tuple[tuple[str, ...], Serving, bool, str]


def _asking(serving: Serving, running: int) -> Serving:
    graphs = max(running, serving.graph_batch or 0)
    return replace(serving, max_running=running, graph_batch=graphs)


def _candidates(start: _Start) -> Iterator[_Candidate]:
    if start.shape.state is not None:
        yield from _of_states(start, start.shape.state.dtype)
    serving, now = start.serving, start.now
    if start.shape.vision_complexity and not serving.text_only and serving.mem_fraction is None:
        changed = replace(serving, text_only=True)
        yield ("--language-model-only",), changed, False, "nothing is kept back for pictures"
    fraction = safe_fraction(start.shape, start.memory_bytes, serving)
    if fraction > now.mem_fraction:
        changed = replace(serving, mem_fraction=fraction)
        yield ("--mem-fraction-static", f"{fraction:g}"), changed, False, "less stays free"
    if now.cap in {"asked", "estimate"} or not now.fits:
        changed, flags = start.filled(serving)
        yield flags, changed, False, "as many as states and cache have room for"
    if now.cap == "kv" and serving.kv_dtype == "auto":
        changed = replace(serving, kv_dtype="fp8_e4m3")
        yield ("--kv-cache-dtype", "fp8_e4m3"), changed, True, "half a cache; other outputs"


def _of_states(start: _Start, dtype: str) -> Iterator[_Candidate]:
    serving = start.serving
    alone = replace(serving, radix=False, state_slots=None)
    if serving.radix:
        changed, flags = start.filled(alone)
        note = "one state a request; shared prompts are not reused"
        yield ("--disable-radix-cache", *flags), changed, False, note
    if serving.drafts and not serving.replay:
        changed, flags = start.filled(replace(alone, replay=True))
        switches = ("--disable-radix-cache", "--enable-linear-replayssm-spec")
        note = "one state a request; drafts' states recomputed"
        yield (*switches, *flags), changed, False, note
    if serving.radix and serving.resolved_strategy == "extra_buffer":
        changed, flags = start.filled(replace(serving, strategy="extra_buffer_lazy"))
        switches = ("--mamba-radix-cache-strategy", "extra_buffer_lazy")
        yield (*switches, *flags), changed, False, "four states a request"
    if serving.radix and serving.state_slots is None:
        yield from _ratios(start)
    if serving.state_dtype is None and dtype == "float32":
        changed, flags = replace(serving, state_dtype="bfloat16"), ()
        if not serving.radix:
            changed, flags = start.filled(changed)
        note = "half a state; other outputs"
        yield ("--mamba-ssm-dtype", "bfloat16", *flags), changed, True, note


def _ratios(start: _Start) -> Iterator[_Candidate]:
    best, chosen = 0, 0.0
    for tenth in range(5, 121, 5):
        changed = replace(start.serving, state_ratio=tenth / 10)
        tried = budget(start.shape, start.memory_bytes, changed)
        if tried.fits and usable(tried, start.tokens) > best:
            best, chosen = usable(tried, start.tokens), tenth / 10
    if best:
        changed = replace(start.serving, state_ratio=chosen)
        note = "more of the pool for states, less for the cache"
        yield ("--mamba-full-memory-ratio", f"{chosen:g}"), changed, False, note
