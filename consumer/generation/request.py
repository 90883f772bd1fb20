"""From a row and a run's settings to one engine request. Pure but for the request's random id."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.ids import Item, derived_seed
from common.records import Row, RunSettings, Sampling, Verdict
from consumer.engine.api import EngineFacts, GenerateRequest, check_ids
from consumer.generation.verdict import Fault

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which try at which item: with the run's seed, all that its own seed depends on."""

    item: Item
    number: int  # 1 is the first


def sampling_of(row: Row, settings: RunSettings) -> Sampling:
    """Return the row's own sampling settings, over the run's."""
    return row.sampling.over(settings.sampling)


def seed_of(row: Row, settings: RunSettings, attempt: Attempt) -> int:
    """Return the seed of one try: distinct per sample and try, the same again on every rerun."""
    base = sampling_of(row, settings).seed
    return derived_seed(settings.seed if base is None else base, attempt.item, attempt.number)


def room_for(input_ids: Sequence[int], facts: EngineFacts) -> int:
    """Return how many tokens may follow the prompt; below 1: it does not fit."""
    limit = facts.context_tokens
    if facts.kv_tokens is not None:
        limit = min(limit, facts.kv_tokens)
    return limit - len(input_ids)


def build(
    row: Row,
    settings: RunSettings,
    attempt: Attempt,
    input_ids: Sequence[int],
    facts: EngineFacts,
) -> GenerateRequest | Fault:
    """Return the request for one turn, or why there can be none.

    ``max_tokens`` is the row's or the run's (in a try after the first, the run's limit for those,
    if it is higher), or what the context leaves, whichever is least. A prompt is never cut: one
    that leaves no room for a single token is ``too_long``.
    """
    try:
        check_ids(input_ids, facts.vocab_size)
    except ValueError as error:
        return Fault(Verdict.BAD_ROW, str(error))
    room = room_for(input_ids, facts)
    if room < 1:
        return Fault(
            Verdict.TOO_LONG,
            f"the prompt has {len(input_ids)} tokens, and the engine takes"
            f" {len(input_ids) + room} for prompt and answer together",
        )
    sampling = sampling_of(row, settings)
    limit = sampling.max_tokens
    if limit is not None and attempt.number > 1 and settings.retry_max_tokens is not None:
        limit = max(limit, settings.retry_max_tokens)
    asked = room if limit is None else min(room, limit)
    seed = seed_of(row, settings, attempt)
    return GenerateRequest(
        rid=secrets.token_hex(16),
        input_ids=input_ids,
        sampling=replace(sampling, max_tokens=max(1, asked), seed=seed),
        seed=seed,
        fresh=settings.reproducible,
    )
