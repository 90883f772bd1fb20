"""What a round of tuning may turn, and what each choice means in flags. Pure.

A point is one value for each knob. :meth:`Space.setting` makes flags of it by the arithmetic of
memory: the running requests are a share of the most that fit, so a server is never started for
what cannot. Where the model's shape is not understood the most is taken from what the engine said
of itself, and nothing is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from consumer.engine.sglang_flags import TEXT_ONLY, newest_name
from consumer.tuning.lifts import safe_fraction, usable
from consumer.tuning.memory import budget
from consumer.tuning.roofline import roofline
from consumer.tuning.serving import HARMLESS, Serving, serving_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from consumer.tuning.cards import Card
    from consumer.tuning.model import ModelShape

Value = str | int | float
Point = dict[str, Value]

FILLS = (1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25)  # of the most running requests that fit
# In flight, over the running requests. More than 1: a queue inside, so that no place is empty; but
# with a queue an engine reads each prompt as its place comes free, alone.
WINDOWS = (1.25, 1.1, 1.5, 1.0)
CHUNKS = ("auto", 4096, 16384)
# Places that must be free before prompts are read: one at a time, reading costs a decoding engine a
# whole pass over its weights each; four is the most that SGLang takes.
ADMITS = (1, 4)
DRAFTS = (0, 3, 1, 2, 4)
ACCEPTED = 0.7  # of draft tokens, each after an accepted one; an assumption to order trials by
# Seen on an H200: at bulk batch sizes more running requests beat speculation.
DRAFTS_DISCOUNT = 0.8
MOST_RUNNING = 4096
UNKNOWN_GROWTH = 4.0  # without arithmetic: so many times what the defaults run
# A knob is left alone where one of these flags was given: what the user says is the user's.
_OWNED = {
    "radix": ("--disable-radix-cache",),
    "fill": ("--max-running-requests", "--max-mamba-cache-size"),
    "fraction": ("--mem-fraction-static",),
    "state_dtype": ("--mamba-ssm-dtype",),
    "kv_dtype": ("--kv-cache-dtype",),
    "chunk": ("--chunked-prefill-size",),
    "admit": ("--min-free-slots-delay",),
    "prefill_graphs": ("--disable-prefill-cuda-graph", "--disable-cuda-graph"),
    "graphs": ("--cuda-graph-max-bs-decode", "--cuda-graph-bs-decode", "--disable-cuda-graph"),
    "policy": ("--schedule-policy",),
    "drafts": ("--speculative-algorithm",),
}
CHANGING = frozenset({"state_dtype", "kv_dtype"})  # knobs that change what the model answers
# Flags that are known to leave alone what a model answers, and how long a row may be.
_ALONE = HARMLESS | {TEXT_ONLY, "--enable-linear-replayssm-spec"}
_ALONE |= {"--speculative-num-steps", "--speculative-num-draft-tokens"}
_ALONE |= {flag for knob, flags in _OWNED.items() if knob not in CHANGING for flag in flags}


def altering(flags: Sequence[str]) -> list[str]:
    """Return the names of flags that change what a model answers or takes, or that may."""
    names = (newest_name(word.partition("=")[0]) for word in flags if word.startswith("-"))
    return [name for name in names if name not in _ALONE and not name[1:2].isdigit()]


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may be tried beyond what leaves the outputs alone."""

    state_dtype: bool = False
    kv_dtype: bool = False
    drafts: bool = True  # False where items are real: tokens then differ by rounding


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of a request, on average. ``cached``: the share of prompt tokens that a cache served."""

    prompt_tokens: int
    output_tokens: int
    cached: float = 0.0

    @property
    def tokens(self) -> int:
        """Prompt and answer."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Setting:
    """What a trial's server gets beyond the base flags. ``running`` None: the server's own."""

    flags: tuple[str, ...] = ()
    window: int | None = None
    running: int | None = None
    changes_outputs: bool = False
    predicted: float | None = None  # output tokens a second at most, by the roofline
    point: tuple[tuple[str, Value], ...] = ()

    @property
    def key(self) -> str:
        """Equal for settings that a server could not tell apart."""
        return " ".join((*self.flags, f"window={self.window}"))


DEFAULT = Setting()


@dataclass(frozen=True, slots=True)
class Space:
    """The knobs of one round. ``shape``, ``memory_bytes`` and ``card`` None: not known."""

    base: tuple[str, ...]
    lengths: Lengths
    default_running: int  # what the defaults ran, as the engine said
    shape: ModelShape | None = None
    memory_bytes: int | None = None
    card: Card | None = None
    allowed: Allowed = field(default_factory=Allowed)

    @property
    def serving(self) -> Serving:
        """What the base flags say."""
        return serving_of(self.base)

    @property
    def arithmetic(self) -> bool:
        """Whether it can be worked out what fits."""
        return self.shape is not None and self.memory_bytes is not None

    def choices(self) -> dict[str, tuple[Value, ...]]:
        """Return the values of each knob, the most promising first."""
        shape, state = self.shape, self.shape.state if self.shape else None
        reads = {newest_name(word.partition("=")[0]) for word in self.base}
        found: dict[str, tuple[Value, ...]] = {
            "radix": ("off", "on"),
            "fill": FILLS,
            "window": WINDOWS,
            "chunk": CHUNKS,
            "admit": ADMITS,
            "prefill_graphs": ("on", "off"),
            "policy": ("fcfs", "lpm"),
        }
        if self.arithmetic:
            found |= {"fraction": ("auto", "safe"), "graphs": ("cover", "auto")}
        if self.allowed.state_dtype and state is not None and state.dtype == "float32":
            found["state_dtype"] = ("float32", "bfloat16")
        if self.allowed.kv_dtype:
            found["kv_dtype"] = ("auto", "fp8_e4m3")
        real = "dummy" not in self.base  # random weights accept no draft
        if self.allowed.drafts and real and shape is not None and shape.draft_weight_bytes:
            found["drafts"] = DRAFTS
        return {
            knob: values
            for knob, values in found.items()
            if not reads.intersection(_OWNED.get(knob, ()))
        }

    def setting(self, point: Mapping[str, Value]) -> Setting | None:
        """Return what a point means, or None where it does not fit the card."""
        flags, serving = self._switches(point)
        if point.get("fraction") == "safe" and self.shape and self.memory_bytes:
            asked = self._asking(serving, self._most(serving))
            share = safe_fraction(self.shape, self.memory_bytes, asked)
            serving = replace(serving, mem_fraction=share)
            flags += ["--mem-fraction-static", f"{share:g}"]
        running = self._running(point, serving)
        if running is None:
            asked = serving
        else:
            asked = self._asking(serving, running)
            flags += ["--max-running-requests", str(running)]
            if asked.state_slots is not None and serving.state_slots is None:
                flags += ["--max-mamba-cache-size", str(asked.state_slots)]
        if self.shape and self.memory_bytes:
            most = serving.resolved(self.memory_bytes, self.shape).graph_batch or 0
            if point.get("graphs") == "cover" and running is not None and running > most:
                flags += ["--cuda-graph-max-bs-decode", str(running)]
            if not budget(self.shape, self.memory_bytes, asked).fits:
                return None
        effective = running or self.default_running
        return Setting(
            flags=tuple(flags),
            window=max(1, round(effective * float(point.get("window", WINDOWS[0])))),
            running=running,
            changes_outputs=any(_changes(knob, point) for knob in CHANGING),
            predicted=self.predicted(asked, effective),
            point=tuple(sorted(point.items())),
        )

    def predicted(self, serving: Serving, running: int) -> float | None:
        """Return the roofline's tokens a second for so many running requests."""
        if self.shape is None or self.card is None:
            return None
        cached = self.lengths.cached if serving.radix else 0.0
        return roofline(
            self.shape,
            self.card,
            serving,
            running=running,
            prompt_tokens=max(1, round(self.lengths.prompt_tokens * (1 - cached))),
            output_tokens=self.lengths.output_tokens,
            accept_length=sum(ACCEPTED**n for n in range(serving.draft_steps + 1)),
        ).tokens_per_second

    def first(self) -> list[Point]:
        """Return the points to try before anything is learnt, the most promising first.

        The knobs that decide how many requests run are crossed and ordered by the roofline; of the
        best, smaller fills and its other knobs follow, one at a time.
        """
        knobs = self.choices()
        crossed: list[Point] = [{knob: values[0] for knob, values in knobs.items()}]
        for knob in ("radix", "state_dtype", "kv_dtype", "drafts"):
            values = knobs.get(knob, ())[:2]
            crossed = [{**one, knob: value} for one in crossed for value in values] or crossed
        ranked = sorted(crossed, key=self._promise, reverse=True)
        if not ranked:
            return []
        best, others = ranked[0], ranked[1:4]
        turns: list[Point] = [{"admit": 4}, {"fill": 0.625, "admit": 4}]
        turns += [{"fraction": "safe", "prefill_graphs": "off"}]
        turns += [
            {"fill": 0.625},
            {"fill": 0.375},
            {"chunk": 16384},
            {"window": 1.0},
            {"fill": 0.875},
        ]
        around = [{**best, **{k: v for k, v in turn.items() if k in knobs}} for turn in turns]
        mixed = [best, *around[:2], *others[:1], around[2], *others[1:2], *around[3:], *others[2:]]
        seen: dict[str, Point] = {}
        for point in mixed:
            setting = self.setting(point)
            if setting is not None:
                seen.setdefault(setting.key, point)
        return list(seen.values())

    def _promise(self, point: Point) -> float:
        setting = self.setting(point)
        if setting is None:
            return -1.0
        if setting.predicted is None:
            return float(setting.running or 0)
        return setting.predicted * (DRAFTS_DISCOUNT if point.get("drafts") else 1.0)

    def _switches(self, point: Mapping[str, Value]) -> tuple[list[str], Serving]:
        """Return the flags of the knobs that are plain choices, and the settings with them."""
        flags: list[str] = []
        drafts = int(point.get("drafts", 0))
        if drafts:
            flags += ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", str(drafts)]
            flags += ["--speculative-eagle-topk", "1"]
            flags += ["--speculative-num-draft-tokens", str(drafts + 1)]
        if point.get("radix") == "off":
            flags.append("--disable-radix-cache")
            full = point.get("state_dtype", "float32") == "float32"
            if drafts and full and self.shape is not None and self.shape.state is not None:
                flags.append("--enable-linear-replayssm-spec")  # else its scratch leaves no room
        for knob, flag, default in (
            ("state_dtype", "--mamba-ssm-dtype", "float32"),
            ("kv_dtype", "--kv-cache-dtype", "auto"),
            ("chunk", "--chunked-prefill-size", "auto"),
            ("admit", "--min-free-slots-delay", ADMITS[0]),
            ("policy", "--schedule-policy", "fcfs"),
        ):
            if knob == "policy" and point.get("radix") == "off":
                continue  # there is no prefix to order by
            if point.get(knob, default) != default:
                flags += [flag, str(point[knob])]
        if point.get("prefill_graphs") == "off":
            flags.append("--disable-prefill-cuda-graph")
        return flags, serving_of((*self.base, *flags))

    def _running(self, point: Mapping[str, Value], serving: Serving) -> int | None:
        if "fill" not in point:
            return None
        return max(1, int(self._most(serving) * float(point["fill"])))

    def _most(self, serving: Serving) -> int:
        """Return the most running requests for which states and cache both have room."""
        if self.shape is None or self.memory_bytes is None:
            return min(MOST_RUNNING, int(self.default_running * UNKNOWN_GROWTH))
        low, high = 0, MOST_RUNNING
        while low < high:
            middle = (low + high + 1) // 2
            one = budget(self.shape, self.memory_bytes, self._asking(serving, middle))
            if one.fits and usable(one, self.lengths.tokens) >= middle:
                low = middle
            else:
                high = middle - 1
        return low

    def _asking(self, serving: Serving, running: int) -> Serving:
        """Return settings that ask for so many, with the state slots that they take."""
        running = max(1, running)
        slots = serving.state_slots
        if serving.radix and self.shape is not None and self.shape.state is not None:
            slots = slots or running * serving.slots_per_request
        graphs = serving.graph_batch
        if graphs is None and self.shape is not None and self.memory_bytes is not None:
            default = serving.resolved(self.memory_bytes, self.shape).graph_batch or 0
            graphs = running if running > default else None  # as the flags will have it
        return replace(serving, max_running=running, graph_batch=graphs, state_slots=slots)


def _changes(knob: str, point: Mapping[str, Value]) -> bool:
    return point.get(knob, "auto") not in ("auto", "float32")


# What a server does by itself is not worth a word.
_PLAIN: set[tuple[str, Value]] = {
    ("admit", 1),
    ("chunk", "auto"),
    ("fraction", "auto"),
    ("graphs", "cover"),
    ("kv_dtype", "auto"),
}
_PLAIN |= {("policy", "fcfs"), ("prefill_graphs", "on"), ("state_dtype", "float32"), ("drafts", 0)}


def describe(point: Sequence[tuple[str, Value]]) -> str:
    """Return a point in a few words for a table; empty for the defaults."""
    return " ".join(f"{knob}={value}" for knob, value in point if (knob, value) not in _PLAIN)
