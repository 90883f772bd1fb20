from __future__ import annotations

import math

import pytest

from consumer.engine.honesty import differences, judge, judge_floor
from consumer.engine.honesty_paths import Probe
from consumer.engine.supervisor import UnfitError


def probe(prompt, ids, logprobs, way="uncached"):
    return Probe(prompt, way, f"text of {ids}", tuple(ids), tuple(logprobs))


BASE = (
    probe("a", [1, 2, 3, 4], [-0.1, -0.2, -0.1, -0.3]),
    probe("b", [5, 6, 7, 8], [-1.8, -0.4, -0.9, -0.1]),
)


def test_answers_that_differ_by_rounding_agree():
    others = (
        probe("a", [1, 2, 3, 4], [-0.12, -0.19, -0.1, -0.33]),
        probe("b", [5, 6, 7, 8], [-1.83, -0.41, -0.88, -0.1]),
    )
    judge(BASE, others, 0.25)


def test_two_near_equal_candidates_may_change_places_and_what_follows_says_nothing():
    others = (BASE[0], probe("b", [9, 1, 1, 1], [-1.9, -5.0, -5.0, -5.0], "cached"))
    assert differences(BASE[1], others[1]) == [pytest.approx(0.1)]
    judge(BASE, others, 0.25)


def test_another_answer_with_other_probabilities_is_refused_side_by_side():
    others = (
        probe("a", [1, 9, 9, 9], [-0.1, -2.2, -0.1, -0.1], "cached"),
        probe("b", [9, 9, 9, 9], [-0.2, -0.1, -0.1, -0.1], "cached"),
    )
    with pytest.raises(UnfitError, match="uncached and cached disagree") as refusal:
        judge(BASE, others, 0.25)
    assert "text of [1, 2, 3, 4]" in refusal.value.why
    assert "text of [1, 9, 9, 9]" in refusal.value.why


def test_two_engines_are_not_called_one_that_contradicts_itself():
    others = tuple(probe(p.prompt, [99, 98, 97, 96], p.logprobs) for p in BASE)
    with pytest.raises(UnfitError, match="otherwise than before: first and now") as refusal:
        judge(BASE, others, 0.25, sides=("first", "now"))
    assert "   first: 'text of [1, 2, 3, 4]'" in refusal.value.why
    assert "     now: 'text of [99, 98, 97, 96]'" in refusal.value.why


def test_answers_that_never_begin_alike_are_refused_even_if_each_is_sure():
    others = tuple(probe(p.prompt, [99, 98, 97, 96], p.logprobs) for p in BASE)
    with pytest.raises(UnfitError, match="disagree"):
        judge(BASE, others, 0.25)


@pytest.mark.parametrize("value", [math.nan, -math.inf, -20.0])
def test_noise_is_refused(value):
    with pytest.raises(UnfitError, match="noise"):
        judge_floor([probe("a", [1, 2], [value, -1.0])] * 3)


def test_one_wrong_answer_in_a_crowd_of_right_ones_is_not_averaged_away():
    others = (*BASE * 10, probe("a", [1, 2, 9, 9], [-0.1, -0.2, -4.2, -0.1], "crowd"))
    with pytest.raises(UnfitError, match="disagree"):
        judge(BASE, others, 0.25)


def test_an_empty_answer_is_no_agreement():
    others = (probe("a", [], []), BASE[1])
    with pytest.raises(UnfitError):
        judge(BASE, others, 0.25)


def test_a_record_of_other_prompts_is_not_compared():
    judge((probe("older prompt", [1], [-0.1]),), BASE, 0.25)
