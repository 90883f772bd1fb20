"""The screen of a plan: at most 100 columns, and as readable without colour as with it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from common.duration import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from producer.plan.data import Plan
    from producer.plan.survey import Survey
    from producer.plan.tally import Bar, Reason

WIDTH = 100
_LABEL = 11
_BAR_CELLS = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_REASONS_SHOWN = 6
_EXAMPLES_SHOWN = 2


def screen(plan: Plan, *, ascii_only: bool = False) -> str:
    """Return the plan in words; ``ascii_only`` where the terminal knows no other signs."""
    lines = [*_head(plan), *_rows(plan), *_tokens(plan, ascii_only=ascii_only)]
    lines += [*_refused(plan), *_output(plan), *_cost(plan)]
    if plan.survey.rows and not plan.survey.ended:
        lines += ["", _next(plan)]
    return "\n".join(lines)


def _head(plan: Plan) -> Iterator[str]:
    found = plan.survey
    yield f"Plan for {plan.source}: nothing is stored or queued."
    for name, shape in found.shapes.items():
        yield _line("Shape", f"{name}: {shape.rows:,} rows, the first at {shape.place}")
        yield _short(shape.example)


def _rows(plan: Plan) -> Iterator[str]:
    found, doubles = plan.survey, plan.survey.doubles
    yield _line("Rows", f"{found.rows:,} of {found.read:,} can be loaded, {found.bad:,} cannot")
    if found.several_turns:
        yield _line(
            "",
            f"{found.several_turns:,} of them have several turns: {found.answers:,} answers in all",
        )
    if found.own_settings:
        own = ", ".join(f"{name} {count:,}" for name, count in found.own_settings.most_common())
        yield _line("", f"rows with settings of their own: {own}")
    yield _line(
        "Doubles",
        f"{doubles.same_id_other_prompt:,} rows repeat an id with another prompt,"
        f" {doubles.same_id_same_prompt:,} with the same;",
    )
    yield _line("", f"{doubles.same_prompt:,} prompts equal an earlier one (each is answered)")
    for what, examples in (
        ("id", doubles.other_prompt_examples),
        ("prompt", doubles.same_prompt_examples),
    ):
        for example in examples[:_EXAMPLES_SHOWN]:
            again, first = example
            earlier = f"line {first.line}" if first.file == again.file else str(first)
            yield _line("", f"{again} has the {what} of {earlier}")


def _tokens(plan: Plan, *, ascii_only: bool) -> Iterator[str]:
    lengths = plan.survey.lengths
    first, *rest = f"of prompts, {plan.tokenizer_words}".splitlines()
    yield _line("Tokens", first)
    yield from (_line("", line) for line in rest)
    if not lengths.count:
        return
    yield _line(
        "",
        f"{lengths.total:,} in all; median {lengths.quantile(0.5):,},"
        f" 90 % {lengths.quantile(0.9):,}, 99 % {lengths.quantile(0.99):,},"
        f" longest {lengths.most:,}",
    )
    bars = lengths.bars()
    most = max(bar.rows for bar in bars)
    yield from (_bar(bar, most, lengths.count, ascii_only=ascii_only) for bar in bars)


def _bar(bar: Bar, most: int, total: int, *, ascii_only: bool) -> str:
    eighths = max(-(-bar.rows * _BAR_CELLS * 8 // most), 0)
    if ascii_only:
        drawn = "#" * -(-eighths // 8)
    else:
        drawn = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    spans = f"{bar.low:>9,} -{bar.high:>9,}"
    return f"{spans} |{drawn:<{_BAR_CELLS}}| {bar.rows:>10,} {bar.rows / total:>6.1%}"


def _refused(plan: Plan) -> Iterator[str]:
    found = plan.survey
    if plan.context is None:
        yield _line("Too long", "not known: the model is not on this machine; give --context N")
    else:
        own = plan.own_context
        limit = f"{plan.context.tokens:,} tokens by {plan.context.origin}"
        if own is not None and own != plan.context.tokens:
            limit += f", {own:,} by the model"
        yield _line("Too long", f"{_no_room(plan)}: {limit}")
        for row in found.too_long_first:
            yield _line("", f"{row.place}: {row.tokens:,} tokens")
        if found.cut_by_context:
            yield _line("", f"{found.cut_by_context:,} rows leave less room than their max_tokens")
    yield from _reasons("Refused", f"{found.refused.total:,} rows", found.refused.ordered())
    if found.template.total:
        words = f"{found.template.total:,} rows would end as dead letters"
        yield from _reasons("Template", words, found.template.ordered())


def _no_room(plan: Plan) -> str:
    """Return how many rows are too long; of an estimate, no more than it can know."""
    found = plan.survey
    if plan.exact:
        return f"{found.too_long:,} rows leave no room for an answer"
    if not found.may_be_too_long:
        return "by the estimate no row; the tokenizer alone can tell"
    rows = f"{found.may_be_too_long:,} rows"
    return f"by the estimate {rows} leave no room for an answer, and none is refused for it"


def _reasons(label: str, words: str, reasons: list[Reason]) -> Iterator[str]:
    yield _line(label, words)
    for reason in reasons[:_REASONS_SHOWN]:
        yield _line("", f"{reason.count:,} x {reason.first}: {reason.text}")
    if len(reasons) > _REASONS_SHOWN:
        yield _line("", f"... and {len(reasons) - _REASONS_SHOWN} other reasons")


def _output(plan: Plan) -> Iterator[str]:
    output = plan.output
    answers = f"{output.completions:,} completions"
    if output.answers != output.completions:
        answers += f" ({output.answers:,} answers)"
    if output.mean_tokens is None:
        yield _line("Output", f"{answers}; their length is not known: {output.origin}")
        return
    yield _line(
        "Output",
        f"{answers} x {output.mean_tokens:,.0f} tokens = {output.tokens:,} ({output.origin})",
    )


def _cost(plan: Plan) -> Iterator[str]:
    rates, cost = plan.rates, plan.cost
    if cost is None and rates.tokens_per_second:
        yield _line("Cost", "give --expect-tokens or --like: the length of answers is not known")
        return
    if cost is None:
        yield _line("Cost", "give --tokens-per-second (generated, of one GPU), --gpus and --price")
        return
    yield _line(
        "Cost",
        f"{cost.gpu_hours:,.1f} GPU-hours at {rates.tokens_per_second:,.0f} generated tokens/s"
        " a GPU",
    )
    gpus = "1 GPU" if rates.gpus == 1 else f"{rates.gpus} GPUs"
    words = f"{duration(3600 * cost.wall_hours)} on {gpus}"
    if cost.price is not None:
        words += f"; {cost.price:,.2f} at {rates.price:,.2f} a GPU-hour"
    yield _line("", words)


def _next(plan: Plan) -> str:
    bad = " --on-error skip" if plan.survey.bad else ""
    return f"Next: gen-producer load {plan.source}{plan.load_flags}{bad}"


def _line(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _short(text: str) -> str:
    """Return an example on one line, whatever signs are in it."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    room = WIDTH - _LABEL
    return " " * _LABEL + (plain if len(plain) <= room else plain[: room - 3] + "...")


def summary(found: Survey) -> str:
    """Return in one line what keeps the data set from being loaded as it is."""
    parts = []
    if found.too_long:
        parts.append(f"{found.too_long:,} are too long")
    if found.refused.total:
        parts.append(f"{found.refused.total:,} are no rows that can be answered")
    return ", ".join(parts)
