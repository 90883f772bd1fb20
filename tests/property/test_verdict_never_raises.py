"""Whatever bytes an engine sends, the verdict is a class, never an exception."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.records import Sampling, Verdict
from consumer.engine import engine_named
from consumer.engine.api import Answer, GenerateRequest, Reply
from consumer.generation.thinking import FAMILIES, Parts, Thinking, cut_ids, split_thought
from consumer.generation.verdict import Fault, examine, judge, loop_period
from consumer.generation.visible import shows

SENT = GenerateRequest(rid="ab" * 16, input_ids=[1, 2], sampling=Sampling(max_tokens=4), seed=0)
STATUSES = st.one_of(st.none(), st.just(200), st.integers(100, 599))
READERS = [engine_named(name).read for name in ("sglang", "llamacpp")]

answers = st.builds(
    Answer,
    rid=st.one_of(st.none(), st.text(max_size=40), st.just(SENT.rid)),
    output_ids=st.lists(st.integers(), max_size=300),
    text=st.one_of(st.none(), st.text(max_size=50)),
    finish_reason=st.sampled_from(["stop", "length", "abort"]),
    prompt_tokens=st.integers(),
    completion_tokens=st.integers(),
    cached_tokens=st.integers(),
    detail=st.text(max_size=50),
)


@given(status=STATUSES, body=st.binary(max_size=300), error=st.text(max_size=40), data=st.data())
@example(status=200, body=b"[]", error="", data=None)
@example(status=200, body=b'{"meta_info": 3}', error="", data=None)
def test_any_bytes_get_a_class(status, body, error, data) -> None:
    for read in READERS:
        got = examine(Reply(status, body, error), SENT, read)
        assert isinstance(got, (Fault, Answer))
        if isinstance(got, Fault):
            assert got.verdict in Verdict
            assert got.verdict is not Verdict.OK


@pytest.mark.row("B6")
@pytest.mark.row("F10")
@given(answer=answers, text=st.text(max_size=200), opened=st.booleans())
@example(answer=None, text="</think><think></think>", opened=True)
def test_any_answer_gets_a_class_and_only_whole_text_is_ok(answer, text, opened) -> None:
    if answer is None:
        answer = Answer(None, [], text, "stop", 2, 0, 0, "")
    examine(Reply(200, b""), SENT, lambda _: answer)
    judged = judge(answer, split_thought(text, Thinking(opened=opened)))
    assert judged.verdict in Verdict
    if judged.verdict is Verdict.OK:
        assert shows(judged.parts.content)
        assert answer.finish_reason != "length"


BLANKS = st.text(
    st.characters(categories=["Cc", "Cf", "Zs", "Zl", "Zp"])
    | st.sampled_from("\u115f\u1160\u3164\uffa0\u2800\ufffd\ufe0f\u034f"),
    max_size=30,
)
SIGNS = st.characters(categories=["L", "N", "P", "S"]).filter(lambda sign: sign not in _FILLERS)
_FILLERS = "\u115f\u1160\u3164\uffa0\u2800\ufffd\U00013441\U00013442\U0001d159"


def _verdict(reasoning, content) -> Verdict:
    return judge(Answer(None, [], content, "stop", 2, 3, 0, ""), Parts(reasoning, content)).verdict


@pytest.mark.row("F10")
@given(before=BLANKS, sign=SIGNS, after=BLANKS, thought=st.none() | st.text(max_size=5))
def test_one_sign_that_can_be_seen_makes_an_answer_and_no_blank_does(
    before, sign, after, thought
) -> None:
    nothing = Verdict.EMPTY if thought is None else Verdict.THOUGHT_ONLY
    assert _verdict(thought, before + after) is nothing
    assert _verdict(thought, before + sign + after) is Verdict.OK


@given(
    head=st.lists(st.integers(0, 9), max_size=50),
    unit=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    times=st.integers(4, 12),
)
def test_a_planted_loop_is_always_found(head, unit, times) -> None:
    while len(unit) * times < 128:
        times += 1
    assert 0 < loop_period(head + unit * times, 4) <= len(unit)


ids = st.lists(st.integers(0, 3), max_size=12)
marks = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)


@settings(max_examples=60)
@given(said=ids, start=marks, end=marks, close=marks | st.just(()), opened=st.booleans())
def test_a_thought_is_always_within_the_answer(said, start, end, close, opened) -> None:
    thinking = Thinking(opened=opened, start_ids=start, end_ids=end, close_ids=close)
    cut = cut_ids(said, thinking)
    if cut is not None:
        assert 0 <= cut.thought <= cut.end <= cut.answer <= len(said)
        if cut.closed:
            assert tuple(said[cut.answer - len(end) : cut.answer]) == end
        else:
            assert cut.answer == len(said)


@settings(max_examples=60)
@given(thought=st.text(max_size=30), content=st.text(max_size=30), family=st.sampled_from(FAMILIES))
def test_what_is_written_is_taken_apart_again(thought, content, family) -> None:
    if any(mark in thought + content for mark in (family.start, family.end)):
        return
    text = family.written(thought, content, opened=False)
    parts = split_thought(text, Thinking(family.start, family.end))
    assert parts.content.startswith(family.gap.strip("\n"))
    assert parts.content.endswith(content.lstrip("\n"))
    if not family.close:
        assert parts.reasoning == thought.strip()
