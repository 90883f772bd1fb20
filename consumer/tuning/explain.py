"""``gen-consumer explain``: the memory budget as a table, what caps it, and which flag lifts it."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from common.errors import UsageError
from consumer.tuning.cards import CARDS, GIB, Card, card_named, card_of_size
from consumer.tuning.lifts import Lift, lifts, usable
from consumer.tuning.memory import Budget, budget
from consumer.tuning.roofline import ASSUMED_ACCEPT_LENGTH, Roofline, roofline
from consumer.tuning.serving import Serving, serving_of

if TYPE_CHECKING:
    from consumer.tuning.model import ModelShape

JSON_VERSION = 1
_BAR = 24
_WIDTH = 100
_LIFTS = 5


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a model on a card with flags, and the lengths of its requests."""

    shape: ModelShape
    memory_bytes: int
    card: Card | None
    flags: tuple[str, ...]
    prompt_tokens: int
    output_tokens: int
    accept_length: float | None = None

    @property
    def tokens(self) -> int:
        """Of a request, prompt and answer."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer, ready to be shown."""

    question: Question
    serving: Serving
    budget: Budget
    usable: int  # running requests for which the cache has room, too
    lifts: tuple[Lift, ...]
    roof: Roofline | None
    lifted_roofs: tuple[float | None, ...]

    @property
    def wasted(self) -> tuple[tuple[str, int, str], ...]:
        """Memory that no running request of this length uses: name, bytes, why."""
        one = self.budget
        if not one.fits:
            return ()
        filled = one.running * self.question.tokens
        spare = max(0, one.kv_tokens - filled)
        found = []
        if spare > 0.1 * one.kv_tokens:
            note = f"{one.running:,} requests of {self.question.tokens:,} tokens fill {filled:,}"
            found.append(("cache that stays empty", int(spare * one.kv_token_bytes), note))
        slots = one.state_slots - one.running
        if one.slot_bytes and slots > 0:
            note = f"{slots:,} slots for prefixes, one works for each request"
            found.append(("states that only cache", slots * one.slot_bytes, note))
        return tuple(found)


def card_for(card: str | None, memory_bytes: int | None) -> tuple[Card | None, int]:
    """Return the card, None if it is not known, and its memory.

    A size that is about a known card's is that card's: sellers' gigabytes are no exact size.

    Raises:
        UsageError: neither is given, or the name is unknown and no size is given.
    """
    found = card_named(card) if card else None
    if card and found is None and memory_bytes is None:
        raise UsageError(
            f"The card {card} is not known.",
            why="The known ones: " + ", ".join(one.name for one in CARDS) + ".",
            fix="Give its memory as well: --gpu-memory 80GiB",
        )
    if memory_bytes is not None:
        named = found or card_of_size(memory_bytes)
        near = named is not None and abs(named.memory_bytes - memory_bytes) < 0.1 * memory_bytes
        return (named, named.memory_bytes if named and near else memory_bytes)
    if found is None:
        raise UsageError(
            "No card was named.",
            why="Neither --card nor --gpu-memory is given, and NVML shows no card here.",
            fix="For example: --card H200",
        )
    return found, found.memory_bytes


def explain(question: Question) -> Explanation:
    """Answer. Pure.

    Raises:
        UsageError: a flag's value cannot be used.
    """
    shape, serving = question.shape, serving_of(question.flags)
    one = budget(shape, question.memory_bytes, serving)
    found = lifts(shape, question.memory_bytes, serving, tokens=question.tokens)

    def roof(of: Serving, running: int) -> Roofline | None:
        if question.card is None or running < 1:
            return None
        return roofline(
            shape,
            question.card,
            of,
            running=running,
            prompt_tokens=question.prompt_tokens,
            output_tokens=question.output_tokens,
            accept_length=question.accept_length,
        )

    able = usable(one, question.tokens) if one.fits else 0
    lifted = [roof(lift.serving, lift.running) for lift in found]
    return Explanation(
        question=question,
        serving=serving,
        budget=one,
        usable=able,
        lifts=found,
        roof=roof(serving, able),
        lifted_roofs=tuple(each.tokens_per_second if each else None for each in lifted),
    )


def as_json(answer: Explanation) -> dict[str, Any]:
    """Return the answer as data. Fields are only ever added."""
    question, one = answer.question, answer.budget
    body = asdict(one)
    return {
        "version": JSON_VERSION,
        "model": question.shape.name,
        "parameters": question.shape.parameters,
        "card": question.card.name if question.card else None,
        "memory_bytes": question.memory_bytes,
        "flags": list(question.flags),
        "request_tokens": {"prompt": question.prompt_tokens, "output": question.output_tokens},
        "budget": body,
        "usable_running": answer.usable,
        "wasted": [{"name": n, "bytes": b, "why": w} for n, b, w in answer.wasted],
        "roofline": asdict(answer.roof) if answer.roof else None,
        "lifts": [
            {
                "flags": list(lift.flags),
                "running": lift.running,
                "kv_tokens": lift.kv_tokens,
                "changes_outputs": lift.changes_outputs,
                "note": lift.note,
                "roofline_tokens_per_second": roof,
            }
            for lift, roof in zip(answer.lifts, answer.lifted_roofs, strict=True)
        ],
        "not_understood": list(answer.serving.unknown),
        "notes": list(question.shape.notes),
    }


def as_text(answer: Explanation) -> str:
    """Return the answer for people, at most 100 columns wide."""
    question, one = answer.question, answer.budget
    card = question.card.name if question.card else "the card"
    size = f"{card} ({_size(question.memory_bytes)})"
    title = f"{question.shape.name or 'model'} on {size}, memory fraction {one.mem_fraction:g}"
    lines = [title, ""]
    lines += [_row(part.name, part.bytes, part.note, question.memory_bytes) for part in one.parts]
    lines += ["", *_verdict(answer), *_speed(answer), *_lift_lines(answer)]
    if answer.serving.unknown:
        lines.append("Left out of the arithmetic: " + ", ".join(answer.serving.unknown))
    lines += [f"Note: {note}" for note in question.shape.notes]
    return "\n".join(part for line in lines for part in _fold(line))


def _fold(line: str) -> list[str]:
    """Return a line in as many as the width needs; flags stay in one, to be copied."""
    if len(line) <= _WIDTH or line.lstrip().startswith("--"):
        return [line]
    return textwrap.wrap(line, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _row(name: str, size: int, note: str, whole: int) -> str:
    share = max(0.0, size / whole)
    bar = "#" * round(_BAR * share)
    return f"{name:<19} {_size(size):>10} {share:>5.0%} |{bar:<{_BAR}}| {note}".rstrip()


def _size(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _verdict(answer: Explanation) -> list[str]:
    one, tokens = answer.budget, answer.question.tokens
    if not one.fits:
        return [f"It does not start: {one.why}."]
    causes = {
        "state": f"{one.state_slots:,} state slots, {one.slots_per_request} for each request",
        "asked": f"--max-running-requests {one.asked}",
        "estimate": "the server's own limit",
        "kv": "the cache's tokens",
    }
    asked = f" ({one.asked:,} asked)" if one.asked and one.asked != one.running else ""
    lines = [f"Running at once: {one.running:,}{asked}, capped by {causes[one.cap]}."]
    if answer.usable < one.running:
        lines.append(
            f"The cache has room for {answer.usable:,} of {tokens:,} tokens; more are retracted."
        )
    lines += [f"Wasted: {_size(size)}, {name}: {why}." for name, size, why in answer.wasted]
    return lines


def _speed(answer: Explanation) -> list[str]:
    roof, question = answer.roof, answer.question
    if roof is None:
        return []
    lengths = f"{question.prompt_tokens:,} tokens in, {question.output_tokens:,} out"
    decode = f"{roof.bound} bound; decode alone {roof.decode_tokens_per_second:,.0f}"
    lines = [f"Roofline: {roof.tokens_per_second:,.0f} tokens/s at {lengths} ({decode})."]
    if answer.serving.drafts and question.accept_length is None:
        lines.append(f"  Accepted length {ASSUMED_ACCEPT_LENGTH} is assumed: --accept-length.")
    return lines


def _lift_lines(answer: Explanation) -> list[str]:
    if not answer.lifts:
        return ["No flag known here lets more requests run."] if answer.budget.fits else []
    lines = ["", "What lifts it:" if answer.budget.fits else "What would start:"]
    for lift, roof in list(zip(answer.lifts, answer.lifted_roofs, strict=True))[:_LIFTS]:
        speed = f", roofline {roof:,.0f} tokens/s" if roof else ""
        mark = "! " if lift.changes_outputs else "  "
        lines.append(f"{mark}{lift.running:>6,} running{speed}: {lift.note}")
        lines.append("          " + " ".join(lift.flags))
    if any(lift.changes_outputs for lift in answer.lifts[:_LIFTS]):
        lines.append("! changes what the model answers")
    return lines
