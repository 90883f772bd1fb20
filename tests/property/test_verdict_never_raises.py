"""Whatever bytes an engine sends, the verdict is a class, never an exception."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.records import Sampling, Verdict
from consumer.engine import engine_named
from consumer.engine.api import Answer, GenerateRequest, Reply
from consumer.generation.verdict import Fault, Thinking, examine, judge, loop_period

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
    judged = judge(answer, text, Thinking(opened=opened))
    assert judged.verdict in Verdict
    if judged.verdict is Verdict.OK:
        assert judged.content.strip()
        assert answer.finish_reason != "length"


@given(
    head=st.lists(st.integers(0, 9), max_size=50),
    unit=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    times=st.integers(4, 12),
)
def test_a_planted_loop_is_always_found(head, unit, times) -> None:
    while len(unit) * times < 128:
        times += 1
    assert 0 < loop_period(head + unit * times, 4) <= len(unit)
