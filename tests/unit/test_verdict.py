"""What counts as success: every class, from the texts that real engines send."""

from __future__ import annotations

import orjson
import pytest

from common.records import Sampling, Verdict
from consumer.engine.api import Answer, GenerateRequest, Reply
from consumer.generation.thinking import Parts, Thinking, split_thought
from consumer.generation.verdict import Fault, examine, judge, loop_period

RID = "0123456789abcdef" * 2
SENT = GenerateRequest(rid=RID, input_ids=[1, 2, 3], sampling=Sampling(max_tokens=8), seed=1)


def answer(**changes) -> Answer:
    fields = {
        "rid": RID,
        "output_ids": [5, 6, 2],
        "text": "Paris.",
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "cached_tokens": 0,
        "detail": "",
    }
    return Answer(**{**fields, **changes})


def examined(reply: Reply, result: Answer | None = None):
    def read(body: bytes) -> Answer:
        if result is None:
            orjson.loads(body)
            raise ValueError("not an answer")
        return result

    return examine(reply, SENT, read)


def refused(status: int, body: object) -> Fault:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    fault = examined(Reply(status, data))
    assert isinstance(fault, Fault)
    return fault


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (
            400,
            {"error": {"message": "The input (400000 tokens) is longer than the model's context "
                       "length (8192 tokens)."}},
            Verdict.TOO_LONG,
        ),
        (
            400,
            {"error": {"message": "Requested token count exceeds the model's maximum context "
                       "length of 8192 tokens. You requested a total of 3000032 tokens"}},
            Verdict.TOO_LONG,
        ),
        (
            400,
            {"error": {"code": 400, "message": "request (9000 tokens) exceeds the available "
                       "context size (8192 tokens)", "type": "exceed_context_size_error",
                       "n_prompt_tokens": 9000, "n_ctx": 8192}},
            Verdict.TOO_LONG,
        ),
        (
            400,
            {"error": {"message": "temperature must be a non-negative finite number, got -1."}},
            Verdict.CONTENT_ERROR,
        ),
        (503, {"object": "error", "message": "The request queue is full."}, Verdict.BUSY),
        (429, b"", Verdict.BUSY),
        (500, b"Internal Server Error", Verdict.MALFORMED),
        (404, b"<html>not here</html>", Verdict.MALFORMED),
        (401, {"error": "Unauthorized"}, Verdict.MALFORMED),
        (200, b"<html>a proxy's page</html>", Verdict.MALFORMED),
        (200, b'{"text": "cut', Verdict.MALFORMED),
    ],
)  # fmt: skip
def test_a_refusal_is_classed_by_status_and_text(status, body, verdict) -> None:
    assert refused(status, body).verdict is verdict


@pytest.mark.row("F5")
def test_a_too_long_prompt_is_refused_with_both_token_counts() -> None:
    text = refused(
        400, {"error": {"message": "The input (400000 tokens) is longer than the model's context"
                        " length (8192 tokens)."}}
    ).text  # fmt: skip
    assert "400000" in text
    assert "8192" in text


def test_no_answer_is_the_engine_down_and_a_late_one_a_timeout() -> None:
    assert examined(Reply(None, b"", "reset by peer")).verdict is Verdict.ENGINE_DOWN
    assert examined(Reply(None, b"", "timed out after 5 s")).verdict is Verdict.TIMEOUT


@pytest.mark.row("B8")
def test_a_mixed_up_answer_is_refused() -> None:
    assert examined(Reply(200, b""), answer(rid="f" * 32)).verdict is Verdict.MALFORMED
    assert isinstance(examined(Reply(200, b""), answer(rid=None)), Answer)


@pytest.mark.row("B6")
def test_an_abort_within_200_is_no_success() -> None:
    fault = examined(Reply(200, b""), answer(finish_reason="abort", detail="Aborted"))
    assert fault.verdict is Verdict.ABORTED


def test_an_engine_that_saw_fewer_tokens_than_were_sent_is_found_out() -> None:
    fault = examined(Reply(200, b""), answer(prompt_tokens=2))
    assert fault.verdict is Verdict.INPUT_TRUNCATED
    assert "2 of 3" in fault.text


def test_counted_tokens_that_are_not_there_are_malformed() -> None:
    fault = examined(Reply(200, b""), answer(output_ids=[], completion_tokens=3))
    assert fault.verdict is Verdict.MALFORMED


@pytest.mark.parametrize(
    ("text", "opened", "finish", "apart"),
    [
        ("Paris.", False, "stop", (Verdict.OK, None, "Paris.")),
        ("<think>\nhm\n</think>\n\nParis.", False, "stop", (Verdict.OK, "hm", "Paris.")),
        ("hm\n</think>\n\nParis.", True, "stop", (Verdict.OK, "hm", "Paris.")),
        ("hm\n</think>\n\nParis.", False, "stop", (Verdict.OK, "hm", "Paris.")),
        ("<think>\n\n</think>\n\nParis.", False, "stop", (Verdict.OK, "", "Paris.")),
        ("", False, "stop", (Verdict.EMPTY, None, "")),
        (" \n", False, "stop", (Verdict.EMPTY, None, " \n")),
        ("\u200b\ufeff", False, "stop", (Verdict.EMPTY, None, "\u200b\ufeff")),
        ("\ufffd", False, "length", (Verdict.EMPTY, None, "\ufffd")),
        ("\u200b\U0001f600", False, "stop", (Verdict.OK, None, "\u200b\U0001f600")),
        ("<think>hm</think>\u2060", False, "stop", (Verdict.THOUGHT_ONLY, "hm", "\u2060")),
        ("hm, so", True, "length", (Verdict.THOUGHT_ONLY, "hm, so", "")),
        ("<think>hm, so", False, "stop", (Verdict.THOUGHT_ONLY, "hm, so", "")),
        ("<think>hm</think>\n", False, "stop", (Verdict.THOUGHT_ONLY, "hm", "")),
        ("Paris, the ci", False, "length", (Verdict.TRUNCATED, None, "Paris, the ci")),
        ("hm</think>Paris, the", True, "length", (Verdict.TRUNCATED, "hm", "Paris, the")),
    ],
)
def test_an_answer_is_taken_apart_and_classed(text, opened, finish, apart) -> None:
    parts = split_thought(text, Thinking(opened=opened))
    judged = judge(answer(finish_reason=finish), parts)
    assert (judged.verdict, judged.parts.reasoning, judged.parts.content) == apart
    assert bool(judged.text) == (judged.verdict is not Verdict.OK)


def test_a_cut_off_answer_that_repeats_itself_loops() -> None:
    looping = answer(output_ids=[9, 8, *[1, 2, 3] * 60], finish_reason="length")
    judged = judge(looping, Parts(None, "text"))
    assert judged.verdict is Verdict.LOOPING
    assert "3 tokens" in judged.text


@pytest.mark.parametrize(
    ("ids", "repeats", "period"),
    [
        ([], 4, 0),
        ([7] * 200, 4, 1),
        ([7] * 100, 4, 0),  # too short to be sure
        ([*range(50)] * 4, 4, 50),
        ([*range(50)] * 3, 4, 0),
        ([*range(500), *[1, 2] * 64], 4, 2),
        ([*[1, 2] * 64, 999], 4, 0),  # it got out of the loop
        ([*range(5000)], 4, 0),
    ],
)
def test_loops_are_found_by_their_period(ids, repeats, period) -> None:
    assert loop_period(ids, repeats) == period


def test_a_refrain_that_ends_by_itself_is_no_loop() -> None:
    song = answer(output_ids=[*range(40)] * 5, finish_reason="stop")
    assert judge(song, Parts(None, "la la")).verdict is Verdict.OK
