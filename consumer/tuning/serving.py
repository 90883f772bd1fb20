"""What SGLang's flags say about memory, and what it makes of what they leave open.

:func:`serving_of` reads flags in the newest names and in the older ones; flags that the arithmetic
does not know are left alone and named. :meth:`Serving.resolved` fills in the server's own
defaults: by the card's memory (chunk, graphs, memory fraction) and the model. Rules of 0.5.17, the
same from 0.5.10 to 0.5.23 as far as they concern the pools.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from common.errors import UsageError
from consumer.engine.sglang_flags import STATE_STRATEGIES, newest_name, slots_per_request
from consumer.tuning.cards import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consumer.tuning.model import ModelShape

SPECULATIVE_RUNNING = 48  # what is asked for with speculation where nothing is said
STATE_RATIO = 0.9
# Card memory below so many GiB -> tokens of a prefill chunk, largest decode graph (one GPU).
_BY_MEMORY = ((20, 2048, 8), (35, 2048, 24), (60, 4096, 32), (160, 8192, 256))
_LARGEST = (16384, 512)
_BASE_VISION = 24 * 1024**2


@dataclass(frozen=True, slots=True)
class Serving:
    """A server's settings as far as they move memory. None: the server decides."""

    mem_fraction: float | None = None
    max_running: int | None = None
    radix: bool = True
    strategy: str = "auto"
    overlap: bool = True
    linear_backend: str = "triton"
    state_ratio: float = STATE_RATIO
    state_slots: int | None = None
    state_dtype: str | None = None
    kv_dtype: str = "auto"
    context: int | None = None
    max_total_tokens: int | None = None
    page_size: int = 1
    chunk_tokens: int | None = None
    graph_batch: int | None = None
    decode_graphs: bool = True
    prefill_graphs: bool = True
    speculative: str = ""
    draft_steps: int = 3
    draft_tokens: int = 4
    replay: bool = False
    text_only: bool = False
    unknown: tuple[str, ...] = ()  # flags that the arithmetic does not know

    @property
    def drafts(self) -> int:
        """Draft tokens of a request in one verification, 0 without speculation."""
        return self.draft_tokens if self.speculative else 0

    @property
    def asked(self) -> int | None:
        """The running requests asked for, by a flag or by speculation's default."""
        return self.max_running or (SPECULATIVE_RUNNING if self.speculative else None)

    @property
    def resolved_strategy(self) -> str:
        """What ``auto`` becomes where there is a state and a radix cache."""
        if self.strategy != "auto":
            return self.strategy
        wants = self.overlap or self.page_size > 1
        return "extra_buffer" if wants and self.linear_backend == "triton" else "no_buffer"

    @property
    def slots_per_request(self) -> int:
        """How many slots of the state pool a running request takes."""
        return slots_per_request(self.resolved_strategy, radix=self.radix, overlap=self.overlap)

    def resolved(self, memory_bytes: int, shape: ModelShape) -> Serving:
        """Return the settings with the defaults that the server takes on such a card."""
        chunk, batch = _LARGEST
        for below, small_chunk, small_batch in _BY_MEMORY:
            if memory_bytes < below * GIB:
                chunk, batch = small_chunk, small_batch
                break
        filled = replace(
            self,
            chunk_tokens=self.chunk_tokens if self.chunk_tokens is not None else chunk,
            graph_batch=self.graph_batch or batch,
            context=self.context or shape.context_tokens,
        )
        if filled.mem_fraction is not None:
            return filled
        return replace(filled, mem_fraction=_default_fraction(memory_bytes, filled, shape))


def prefill_graph_sizes(chunk_tokens: int) -> int:
    """Return how many prefill graphs are captured for chunks of at most so many tokens."""
    sizes = (
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, max(chunk_tokens, 0) + 1, 512),
    )
    return sum(size <= chunk_tokens for size in sizes)


def _default_fraction(memory_bytes: int, serving: Serving, shape: ModelShape) -> float:
    """The automatic --mem-fraction-static: what is left beside a reserve for activations.

    Seen: 0.903 on an H200, text only, with and without speculation.
    """
    total = memory_bytes // MIB
    chunk = serving.chunk_tokens or 0
    reserve = 512.0 + 1.5 * max(chunk, 2048) + 1024 / 8
    reserve += 2 * (serving.graph_batch or 0) if serving.decode_graphs else 0
    reserve += 8 * prefill_graph_sizes(chunk) if serving.prefill_graphs else 0
    if total > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    fraction = round((total - reserve) / total, 3)
    if shape.vision_complexity and not serving.text_only:
        growth = shape.vision_complexity / _BASE_VISION - 1
        fraction = round(fraction * 0.95 * min(1.05, max(0.8, 1 - 0.1 * growth)), 3)
    return fraction


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise ValueError("it must lie between 0 and 1")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("it must be 1 or more")
    return value


# flag -> field, how its value is read
_VALUES: dict[str, tuple[str, Callable[[str], object]]] = {
    "--mem-fraction-static": ("mem_fraction", _fraction),
    "--max-running-requests": ("max_running", _positive),
    "--mamba-radix-cache-strategy": ("strategy", str),
    "--linear-attn-backend": ("linear_backend", str),
    "--mamba-full-memory-ratio": ("state_ratio", float),
    "--max-mamba-cache-size": ("state_slots", _positive),
    "--mamba-ssm-dtype": ("state_dtype", str),
    "--kv-cache-dtype": ("kv_dtype", str),
    "--context-length": ("context", _positive),
    "--max-total-tokens": ("max_total_tokens", _positive),
    "--page-size": ("page_size", _positive),
    "--chunked-prefill-size": ("chunk_tokens", int),
    "--cuda-graph-max-bs-decode": ("graph_batch", _positive),
    "--speculative-algorithm": ("speculative", str),
    "--speculative-num-steps": ("draft_steps", _positive),
    "--speculative-num-draft-tokens": ("draft_tokens", _positive),
}
_SWITCHES: dict[str, tuple[str, bool]] = {
    "--disable-radix-cache": ("radix", False),
    "--disable-overlap-schedule": ("overlap", False),
    "--disable-prefill-cuda-graph": ("prefill_graphs", False),
    "--disable-decode-cuda-graph": ("decode_graphs", False),
    "--disable-cuda-graph": ("decode_graphs", False),
    "--enable-linear-replayssm-spec": ("replay", True),
    "--language-model-only": ("text_only", True),
}
# Flags that move no memory, or none to speak of.
HARMLESS = {
    *("--speculative-eagle-topk", "--schedule-policy", "--schedule-conservativeness"),
    *("--attention-backend", "--sampling-backend", "--grammar-backend", "--enable-metrics"),
    *("--random-seed", "--decode-log-interval", "--watchdog-timeout", "--load-format"),
    *("--skip-tokenizer-init", "--stream-interval", "--num-continuous-decode-steps"),
    "--min-free-slots-delay",
    *("--scheduler-recv-interval", "--max-queued-requests", "--log-level", "--max-prefill-tokens"),
    *("--mamba-track-interval", "--reasoning-parser", "--tool-call-parser"),
}
_CHOICES = {
    "strategy": ("auto", *STATE_STRATEGIES),
    "state_dtype": ("float32", "bfloat16", "float16"),
}


def moves_memory(flag: str) -> bool:
    """Return whether the arithmetic takes a flag, of whatever release's name, into account."""
    name = newest_name(flag.partition("=")[0])
    return name in _VALUES or name in _SWITCHES


def serving_of(flags: Sequence[str]) -> Serving:
    """Return what flags of SGLang say; the last of a name wins, as in the server.

    Raises:
        UsageError: a value cannot be what its flag needs; names both.
    """
    found: dict[str, object] = {}
    unknown: list[str] = []
    words = list(flags)
    while words:
        name, equals, value = words.pop(0).partition("=")
        name = newest_name(name)
        if name in _SWITCHES:
            field, setting = _SWITCHES[name]
            found[field] = setting
            if name == "--disable-cuda-graph":
                found["prefill_graphs"] = False
        elif name in _VALUES:
            if not equals:
                value = words.pop(0) if words else ""
            field, read = _VALUES[name]
            found[field] = _read(name, field, value, read)
        elif name.startswith("-") and name not in HARMLESS:
            unknown.append(name)
    if found.get("speculative") and "draft_tokens" not in found and "draft_steps" in found:
        found["draft_tokens"] = int(str(found["draft_steps"])) + 1
    known = {field.name for field in fields(Serving)}
    assert set(found) <= known
    return replace(Serving(unknown=tuple(unknown)), **found)  # type: ignore[arg-type]  # read above


def _read(name: str, field: str, value: str, read: Callable[[str], object]) -> object:
    try:
        result = read(value)
    except ValueError as error:
        raise UsageError(
            f"{name} cannot be {value!r}.",
            why=str(error),
            fix=f"Give {name} a value that SGLang takes, or leave it out.",
        ) from error
    choices = _CHOICES.get(field)
    if choices and result not in choices:
        raise UsageError(
            f"{name} cannot be {value!r}.",
            why="SGLang takes one of: " + ", ".join(choices) + ".",
            fix=f"{name} {choices[1]}",
        )
    return result
