"""What each export format makes of a completion, field by field."""

from __future__ import annotations

import pytest

from common.records import Turn, Usage
from producer.export.formats import FORMATS
from producer.export.openai import error_line
from producer.export.rows import Options, UnfitError
from tests.support.completions import completion

OPTIONS = Options(run="r", samples=1)
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


def rows(form, one, **options):
    return FORMATS[form].rows(one, Options(**{"run": "r", "samples": 1} | options))


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def talk():
    """Two generated turns with thoughts; the first one's thought is not in the second's prompt."""
    first = Turn("A1", "T1", [1], [90, 2], "stop", "ok", Usage(1, 2), 7)
    return completion(
        3,
        messages=[{"role": "system", "content": "S"}, user("Q1"), said("A1"), user("Q2")],
        content="A2",
        reasoning_content="T2",
        turns=[first],
        input_ids=[1, 2, 3],
        output_ids=[90, 4],
    )


def tools():
    """A tool was called by the row's own assistant, and the model answered after it."""
    answer = {"role": "tool", "content": "42", "tool_call_id": "c1"}
    return completion(1, messages=[user("Q"), CALL, answer], row_id=None)


def test_specforge_tells_each_turn_and_its_thought():
    assert rows("specforge", talk()) == [
        {
            "id": "row 3",
            "conversations": [
                {"role": "system", "content": "S"},
                {"role": "user", "content": "Q1"},
                {"role": "assistant", "content": "A1", "reasoning_content": "T1"},
                {"role": "user", "content": "Q2"},
                {"role": "assistant", "content": "A2", "reasoning_content": "T2"},
            ],
        }
    ]


def test_specforge_per_turn_hides_earlier_thoughts():
    first, second = rows("specforge", talk(), per_turn=True)
    assert (first["id"], second["id"]) == ("row 3_gen0", "row 3_gen1")
    assert first["conversations"][-1]["reasoning_content"] == "T1"
    thoughts = [m["reasoning_content"] for m in second["conversations"] if m["role"] == "assistant"]
    assert thoughts == ["", "T2"]


def test_specforge_holds_strings_only_so_that_columns_keep_one_kind():
    (row,) = rows("specforge", tools())
    assert row["id"] == "r-1"
    call, answer = row["conversations"][1:3]
    assert call["content"] == ""
    assert call["tool_calls"].startswith('[{"id":"c1"')
    assert answer == {"role": "tool", "content": "42", "tool_call_id": "c1"}
    assert all(isinstance(v, str) for message in row["conversations"] for v in message.values())
    (row,) = rows("specforge", talk(), reasoning=False)
    assert {m.get("reasoning_content", "") for m in row["conversations"]} == {""}


def test_specforge_refuses_what_is_more_than_text():
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(UnfitError):
        rows("specforge", completion(0, messages=[image]))
    text = {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}
    assert rows("specforge", completion(0, messages=[text]))[0]["conversations"][0] == user("ab")


def test_speculators_learns_each_generated_turn_in_the_context_it_had():
    assert rows("speculators", talk()) == [
        {"id": "row 3_gen0", "input_ids": [1, 90, 2], "loss_mask": [0, 1, 1]},
        {"id": "row 3_gen1", "input_ids": [1, 2, 3, 90, 4], "loss_mask": [0, 0, 0, 1, 1]},
    ]
    (row,) = rows("speculators", completion(5), samples=2)
    assert row == {"id": "row 5-0", "input_ids": [1, 2, 5, 3, 5], "loss_mask": [0, 0, 0, 1, 1]}
    with pytest.raises(UnfitError):
        rows("speculators", completion(5, output_ids=[]))


def test_messages_end_with_the_answer_and_weigh_what_others_said_with_nothing():
    (row,) = rows("messages", talk(), reasoning=False)
    assert row == {"messages": [*talk().messages, said("A2")]}
    (row,) = rows("messages", tools(), reasoning=False)
    assert row["messages"] == [
        user("Q"),
        CALL | {"weight": 0},
        tools().messages[2],
        said("answer to 1"),
    ]
    first, second = rows("messages", talk(), reasoning=True, per_turn=True)
    assert first["messages"][-1] == said("A1") | {"reasoning_content": "T1"}
    assert second["messages"][2:] == [
        said("A1") | {"weight": 0},
        user("Q2"),
        said("A2") | {"reasoning_content": "T2"},
    ]


def test_a_batch_line_is_a_chat_completion():
    (line,) = rows("openai-batch", talk())
    assert (line["custom_id"], line["error"]) == ("row 3", None)
    assert (line["response"]["status_code"], line["response"]["request_id"]) == (200, "r-3")
    body = line["response"]["body"]
    assert (body["object"], body["model"], body["created"]) == (
        "chat.completion",
        "tiny",
        1767225601,
    )
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "A2"
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert body["usage"]["total_tokens"] == 5


def test_an_error_line_has_no_response():
    line = error_line(OPTIONS, k=4, row=4, row_id=None, code="empty", message="no text")
    assert line == {
        "id": "batch_req_r-4",
        "custom_id": "r-4",
        "response": None,
        "error": {"code": "empty", "message": "no text"},
    }
