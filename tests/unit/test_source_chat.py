"""Row shapes: what people have, and the one form that comes of it."""

import pytest

from common.codec import dumps
from common.records import Sampling
from producer.sources.chat import canonical_row
from producer.sources.records import RowError

ASK = [{"role": "user", "content": "Hi"}]


def row(raw, **options):
    return canonical_row(7, raw, **options)


@pytest.mark.parametrize(
    "raw",
    [
        {"prompt": "Hi"},
        {"prompt": ASK},
        {"text": "Hi"},
        {"messages": ASK},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"messages": [{"role": "user", "content": "Hi", "name": None}], "prompt": None},
        {"conversations": [{"from": "human", "value": "Hi"}]},
        {"conversations": ASK},
        {"turns": ["Hi"]},
        {"custom_id": "c", "body": {"messages": ASK}},
        {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}},
    ],
)
def test_all_shapes_come_to_the_same_messages(raw):
    assert row(raw).messages == ASK
    assert row(raw).i == 7


def test_the_order_of_recognition():
    everything = {
        "text": "6",
        "prompt": "5",
        "turns": ["4"],
        "conversations": [{"from": "user", "value": "3"}],
        "messages": [{"role": "user", "content": "2"}],
        "custom_id": "x",
        "body": {"prompt": "1"},
    }
    for key, wanted in zip(
        ["body", "messages", "conversations", "turns", "prompt", "text"], "123456", strict=True
    ):
        assert row(dict(everything)).messages[-1]["content"] == wanted
        del everything[key]


def test_a_named_shape_or_field_overrides_recognition():
    raw = {"messages": ASK, "prompt": "P", "question": "Q"}
    assert row(raw, shape="prompt").messages[0]["content"] == "P"
    assert row(raw, field="question").messages[0]["content"] == "Q"
    assert row(raw, field="question").metadata == {"messages": ASK, "prompt": "P"}


def test_turns_are_user_turns_in_order():
    made = row({"turns": ["a", "b"], "system": "s", "category": "c"})
    assert [m["role"] for m in made.messages] == ["system", "user", "user"]
    assert made.metadata == {"category": "c"}


def test_sharegpt_roles_are_translated():
    talk = [("system", "s"), ("human", "a"), ("gpt", "b"), ("user", "c")]
    made = row({"conversations": [{"from": f, "value": v} for f, v in talk], "id": 3})
    assert [m["role"] for m in made.messages] == ["system", "user", "assistant", "user"]
    assert made.id == "3"


def test_a_closing_answer_is_taken_off_and_kept():
    made = row({"messages": [*ASK, {"role": "assistant", "content": "Ho"}]})
    assert made.messages == ASK
    assert made.metadata == {"reference": "Ho"}
    own = row({"messages": [*ASK, {"role": "assistant", "content": "Ho"}], "reference": "mine"})
    assert own.metadata == {"reference": "mine", "reference_turn": "Ho"}


def test_settings_ids_and_unknown_keys_find_their_places():
    made = row({"prompt": "Hi", "id": "a/../b", "max_tokens": 5, "stop": "x", "score": 0.5})
    assert made.id == "a/../b"
    assert made.sampling == Sampling(max_tokens=5, stop=("x",))
    assert made.metadata == {"score": 0.5}


def test_a_batch_line_gives_its_bodys_settings():
    body = {"model": "m", "messages": ASK, "max_completion_tokens": 9, "n": 1, "stream": True}
    made = row({"custom_id": "c-1", "method": "POST", "url": "/v1/chat/completions", "body": body})
    assert (made.id, made.sampling.max_tokens) == ("c-1", 9)
    assert made.metadata == {"model": "m"}


def test_tools_are_kept():
    tools = [{"type": "function", "function": {"name": "f"}}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "content": "42", "tool_call_id": "1"}
    made = row({"messages": [*ASK, call, result], "tools": tools})
    assert made.messages[1] == {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    assert made.messages[2] == result
    assert made.metadata == {"tools": tools}


IMAGE = {"type": "image_url", "image_url": {"url": "http://internal/x.png"}}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({}, "no prompt in it"),
        ({"question": "Hi"}, "its keys: question"),
        ({"prompt": ""}, "message 0: the prompt is empty"),
        ({"prompt": " \n"}, "the prompt is empty"),
        ({"prompt": 3}, "prompt must be a string"),
        ({"messages": []}, "no message to answer"),
        ({"messages": "Hi"}, "messages: input should be a valid list"),
        ({"messages": [{"role": "user"}]}, "message 0: it has no content"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "message 0: unknown role"),
        ({"messages": [{"content": "x"}]}, "messages.0.role: field required"),
        ({"messages": [{"role": "system", "content": "x"}]}, "nothing to answer"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "no message to answer"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "type image_url; only text"),
        ({"messages": [*ASK, {"role": "assistant", "content": None}]}, "message 1"),
        ({"conversations": [{"from": "human"}]}, "conversations.0.value: field required"),
        ({"turns": ["a", 3]}, "turns.1: input should be a valid string"),
        ({"prompt": "Hi", "max_tokens": 0}, "max_tokens: input should be greater"),
        ({"prompt": "Hi", "max_tokens": "5"}, "max_tokens: input should be a valid integer"),
        ({"prompt": "Hi", "temperature": -1}, "temperature: input should be greater"),
        ({"prompt": "Hi", "top_p": 2}, "top_p: input should be less"),
        ({"prompt": "Hi", "stop": ""}, "stop: an empty string would end every answer"),
        ({"prompt": "Hi", "stop": [""]}, "stop: an empty string would end every answer"),
        ({"messages": ASK, "stop": ["###", ""]}, "stop: an empty string would end every answer"),
        ({"custom_id": "c", "body": {"prompt": "x", "stop": [""]}}, "stop: an empty string"),
        ({"prompt": "Hi", "max_tokens": 1, "max_completion_tokens": 2}, "given twice"),
        ({"custom_id": "c", "body": 3}, "body must be an object"),
        ({"custom_id": "c", "body": {"input": "x"}}, "no prompt in it"),
        ({"custom_id": "c", "body": {"prompt": "x", "n": 2}}, "--samples"),
        ({"custom_id": "c", "url": "/v1/embeddings", "body": {"input": "x"}}, "only POST"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(raw, reason):
    with pytest.raises(RowError) as caught:
        row(raw)
    assert reason in str(caught.value)


def test_a_reason_never_quotes_the_row():
    secret = "the-secret-text"
    for raw in (
        {"messages": [{"role": secret, "content": secret}]},
        {"messages": [{"role": "user", "content": {"x": secret}}]},
        {"prompt": "Hi", "temperature": secret},
        {"custom_id": "c", "url": secret, "body": {"prompt": secret}},
    ):
        with pytest.raises(RowError) as caught:
            row(raw)
        assert secret not in str(caught.value)


def test_a_row_is_the_same_bytes_each_time():
    raw = {"b": 1, "prompt": "Hi", "a": 2}
    assert dumps(row(dict(raw))) == dumps(row(dict(raw)))


def test_answers_are_kept_where_they_are_what_is_wanted():
    chat = [*ASK, {"role": "assistant", "content": "Hello.", "reasoning_content": "greet"}]
    kept = row({"messages": chat}, keep_answers=True)
    assert kept.messages == chat
    assert kept.metadata == {}
    assert row({"messages": chat}).messages == ASK


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (ASK, "no answer to keep"),
        ([{"role": "assistant", "content": "Hello."}, *ASK], "no answer to keep"),
        ([*ASK, {"role": "assistant", "tool_calls": [{"id": "1"}]}], "calls a tool"),
    ],
)
def test_a_row_without_an_answer_to_keep_is_a_fault(messages, said):
    with pytest.raises(RowError, match=said):
        row({"messages": messages}, keep_answers=True)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("a/../b c", "a/../b c"),
        ("", ""),
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        (["a", {"b": 1}], '["a",{"b":1}]'),
        ({"shard": 3, "row": 4}, '{"shard":3,"row":4}'),
    ],
)
def test_ids_of_any_kind_have_a_text(given, name):
    assert row({"prompt": "Hi", "id": given}).id == name
    assert row({"body": {"prompt": "Hi"}, "custom_id": given, "id": "other"}).id == name
    assert row({"prompt": "Hi", "id": None}).id is None
