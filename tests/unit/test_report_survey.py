"""What a survey counts of single completions: turns, limits, times that cannot be."""

from __future__ import annotations

import pytest

from common import codec
from common.parts.schema import to_record
from common.records import Sampling, Turn, Usage
from producer.report.survey import Survey
from producer.report.words import limit_words
from tests.support.completions import completion

STARTED = 1_767_225_600.0  # of a plain completion


def survey_of(*completions):
    survey = Survey(earliest=STARTED - 10, latest=STARTED + 1000)
    survey.take([to_record(one) for one in completions], "part")
    return survey


def turn(tokens, finish="stop", thought=0):
    return Turn(
        content="x",
        reasoning_content=None,
        input_ids=[1],
        output_ids=[2],
        finish_reason=finish,
        verdict="ok",
        usage=Usage(5, tokens, 0, thought),
        seed=1,
    )


def test_a_conversation_is_as_long_as_its_longest_turn_and_counts_all_tokens():
    turns = [turn(100, "length", thought=60), turn(7)]
    survey = survey_of(completion(0, turns=turns, usage=Usage(5, 10)), completion(1))
    assert (survey.longest.tokens, survey.longest.cut, survey.cut) == (100, True, 1)
    assert survey.tokens.completion == 100 + 7 + 10 + 2
    assert survey.thinking().thought_tokens == 60
    assert sum(survey.throughput().total) == pytest.approx(119, abs=0.01)


def test_limits_are_told_apart_the_commonest_first():
    cut = {"finish_reason": "length", "verdict": "truncated"}
    survey = survey_of(
        *(completion(k, sampling=Sampling(max_tokens=64)) for k in range(3)),
        completion(3, sampling=Sampling(max_tokens=9), **cut),
        completion(4, sampling=Sampling()),
    )
    limit = survey.limit(64, dead_truncated=2, finished=10)
    assert [(one.max_tokens, one.completions, one.cut) for one in limit.limits] == [
        (64, 3, 0),
        (9, 1, 1),
    ]
    assert (limit.cut, limit.share, limit.lowest, limit.highest) == (3, 0.3, 9, 64)


@pytest.mark.parametrize(
    ("cut_at", "dead", "words"),
    [
        ([9], 0, "the limit of 9"),
        ([9, 64, 9], 0, "limits between 9 and 64"),
        ([9, None], 0, "their limit"),  # the context's, of which a completion does not tell
        ([9], 1, "their limit"),  # nor does a dead letter tell of its own
        ([], 2, "their limit"),
    ],
)
def test_limits_are_named_of_those_that_were_cut_off_alone(cut_at, dead, words):
    cut = {"finish_reason": "length", "verdict": "truncated"}
    whole = [completion(k, sampling=Sampling(max_tokens=n)) for k, n in enumerate((32, 40))]
    short = [completion(2, sampling=Sampling(max_tokens=at), **cut) for at in cut_at]
    limit = survey_of(*whole, *short).limit(4, dead_truncated=dead, finished=10)
    assert limit_words(limit) == words


@pytest.mark.parametrize("started", ["1970-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "soon"])
def test_a_clock_that_is_wrong_spoils_no_figure(started):
    survey = survey_of(completion(0, started=started), completion(1))
    speeds = survey.throughput()
    assert (speeds.undated, speeds.workers[0].completions) == (1, 1)
    assert speeds.bins <= 3


def test_parts_of_an_older_sink_are_counted_and_of_a_newer_one_refused():
    survey = survey_of()
    record = to_record(completion(0))
    survey.take([{name: value for name, value in record.items() if name != "turns"}], "part")
    assert survey.tokens.completion == 2
    with pytest.raises(ValueError, match="git pull"):
        survey.take([record | {"version": 99}], "part")


def test_examples_are_a_few_of_each_class_whatever_comes():
    survey = survey_of(*(completion(k, verdict="empty") for k in range(50)))
    assert [kept.example.k for kept in survey.examples["empty"]] == [0, 1, 2]
    assert codec.dumps(survey.examples["empty"][0])
