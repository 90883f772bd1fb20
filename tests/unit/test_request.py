"""From a row to a request: limits, seeds, and what is refused before an engine sees it."""

from __future__ import annotations

from common.ids import Item
from common.records import Row, RunSettings, Sampling, Verdict
from consumer.engine.api import EngineFacts, GenerateRequest
from consumer.generation.request import Attempt, build, seed_of
from consumer.generation.verdict import Fault

FACTS = EngineFacts("sglang", "0", "m", "", 100, 50, 8, None)
ROW = Row(i=0, messages=[{"role": "user", "content": "hi"}])
FIRST = Attempt(Item(7), 1)


def settings(**sampling) -> RunSettings:
    return RunSettings(model="m", model_fingerprint="", sampling=Sampling(**sampling), seed=3)


def test_max_tokens_is_what_the_context_leaves_when_nobody_said() -> None:
    request = build(ROW, settings(), FIRST, [1] * 20, FACTS)
    assert isinstance(request, GenerateRequest)
    assert request.sampling.max_tokens == 30
    assert len(request.rid) == 32


def test_max_tokens_never_passes_the_context_or_the_token_pool() -> None:
    assert build(ROW, settings(max_tokens=99), FIRST, [1] * 20, FACTS).sampling.max_tokens == 30
    small = EngineFacts("sglang", "0", "m", "", 100, 50, 8, 25)
    assert build(ROW, settings(max_tokens=99), FIRST, [1] * 20, small).sampling.max_tokens == 5


def test_the_rows_own_sampling_wins() -> None:
    row = Row(i=0, messages=[], sampling=Sampling(max_tokens=4, temperature=0.0))
    request = build(row, settings(max_tokens=9, temperature=1.0, top_p=0.5), FIRST, [1], FACTS)
    assert request.sampling.max_tokens == 4
    assert request.sampling.temperature == 0.0
    assert request.sampling.top_p == 0.5


def test_a_prompt_without_room_for_one_token_is_too_long_with_both_counts() -> None:
    fault = build(ROW, settings(), FIRST, [1] * 50, FACTS)
    assert isinstance(fault, Fault)
    assert fault.verdict is Verdict.TOO_LONG
    assert fault.text.count("50") == 2
    assert isinstance(build(ROW, settings(), FIRST, [1] * 49, FACTS), GenerateRequest)


def test_a_token_that_the_model_does_not_have_never_reaches_it() -> None:
    for ids in ([1, 100], [-1], []):
        fault = build(ROW, settings(), FIRST, ids, FACTS)
        assert isinstance(fault, Fault)
        assert fault.verdict is Verdict.BAD_ROW


def test_seeds_differ_by_item_and_try_and_repeat_on_a_rerun() -> None:
    run = settings()
    seeds = {seed_of(ROW, run, Attempt(Item(k), n)) for k in range(50) for n in (1, 2, 3)}
    assert len(seeds) == 150
    assert seed_of(ROW, run, FIRST) == seed_of(ROW, run, FIRST)
    own = Row(i=0, messages=[], sampling=Sampling(seed=99))
    assert seed_of(own, run, FIRST) != seed_of(ROW, run, FIRST)
