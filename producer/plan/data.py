"""All that a plan says, and the same as one JSON object, which docs/plan.md describes. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from producer.load.lengths import Context
    from producer.plan.cost import Cost, Output, Rates
    from producer.plan.survey import Survey
    from producer.plan.tally import Example, Reasons
    from producer.sources.records import Place

JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a plan says."""

    source: str
    model: str
    tokenizer_words: str  # how prompts were counted
    exact: bool  # by the model's own tokenizer
    context: Context | None
    own_context: int | None  # what the model says of itself
    survey: Survey
    output: Output
    rates: Rates
    cost: Cost | None
    load_flags: str


def data_of(plan: Plan) -> dict[str, Any]:
    """Return the JSON object of a plan; fields are only ever added."""
    found = plan.survey
    lengths = found.lengths
    return {
        "version": JSON_VERSION,
        "source": plan.source,
        "model": plan.model,
        "rows": {
            "read": found.read,
            "usable": found.rows,
            "several_turns": found.several_turns,
            "with_own_settings": dict(found.own_settings),
        },
        "shapes": {
            name: {"rows": shape.rows, "first": _place(shape.place), "example": shape.example}
            for name, shape in found.shapes.items()
        },
        "duplicates": {
            "same_id_same_prompt": found.doubles.same_id_same_prompt,
            "same_id_other_prompt": found.doubles.same_id_other_prompt,
            "same_prompt": found.doubles.same_prompt,
            "other_prompt_examples": _pairs(found.doubles.other_prompt_examples),
            "same_prompt_examples": _pairs(found.doubles.same_prompt_examples),
        },
        "prompt_tokens": {
            "exact": plan.exact,
            "how": plan.tokenizer_words,
            "total": lengths.total,
            "least": lengths.least,
            "median": lengths.quantile(0.5),
            "p90": lengths.quantile(0.9),
            "p99": lengths.quantile(0.99),
            "most": lengths.most,
            "histogram": [bar._asdict() for bar in lengths.bars()],
        },
        "too_long": {
            "context": plan.context.tokens if plan.context else None,
            "context_origin": plan.context.origin if plan.context else None,
            "model_context": plan.own_context,
            "rows": found.too_long,
            "may_be": found.may_be_too_long,
            "examples": [
                {**_place(row.place), "tokens": row.tokens} for row in found.too_long_first
            ],
            "cut_by_context": found.cut_by_context,
        },
        "refused": _reasons(found.refused),
        "template_refuses": _reasons(found.template),
        "output": {**asdict(plan.output), "tokens": plan.output.tokens},
        "rates": asdict(plan.rates),
        "cost": asdict(plan.cost) if plan.cost else None,
    }


def _place(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line}


def _pairs(examples: list[Example]) -> list[dict[str, Any]]:
    return [{**_place(one.again), "first": _place(one.first)} for one in examples]


def _reasons(reasons: Reasons) -> dict[str, Any]:
    return {
        "rows": reasons.total,
        "reasons": [
            {"reason": one.text, "rows": one.count, "first": _place(one.first)}
            for one in reasons.ordered()
        ],
    }
