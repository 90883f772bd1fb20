"""The two part formats: what goes in comes out, the same schema, and damage is found."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import codec
from common.errors import UsageError
from common.ids import Item
from common.parts import SUFFIXES, codec_for
from common.parts.index import describe, describe_part
from common.parts.schema import from_json, to_record
from common.records import Completion
from tests.support.completions import completion, completions

FORMATS = pytest.mark.parametrize("suffix", SUFFIXES)


@FORMATS
@given(batch=st.lists(completions(), max_size=6))
@settings(max_examples=30)
def test_any_completions_come_back_as_they_went_in(suffix, batch):
    part = codec_for(suffix)
    data = part.encode(batch, "token")
    if suffix == "jsonl.zst":  # has no null: no row id and an empty one are the same
        batch = [
            dataclasses.replace(
                one, row_id=one.row_id or None, reasoning_content=one.reasoning_content or None
            )
            for one in batch
        ]
    assert list(part.decode(data)) == batch
    assert part.items_of(data) == [one.k for one in batch]
    assert part.token_of(data) == "token"


@given(one=completions())
def test_a_result_of_the_stream_comes_back_as_it_went_in(one):
    assert from_json(codec.dumps(one)) == one


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"{",
        codec.dumps(completion(1)).replace(b'"input_ids":[', b'"input_ids":["x",'),
        codec.dumps(completion(1)).replace(b'"content":"', b'"content":null,"x":"'),
        codec.dumps(completion(1)).replace(b'"k":1', b'"k":true'),
    ],
)
def test_a_result_that_is_no_completion_is_refused(text):
    with pytest.raises(ValueError):
        from_json(text)


@FORMATS
@pytest.mark.parametrize(
    "change",
    [
        {"output_ids": [2**31]},
        {"input_ids": [-1]},
        {"seed": 2**63},
        {"attempt": 2**31},
        {"metadata": {"x": 2**70}},
        {"content": "\ud800"},
    ],
)
def test_what_does_not_fit_the_schema_is_refused_by_both_formats(suffix, change):
    bad = dataclasses.replace(completion(1), **change)
    with pytest.raises(ValueError):
        codec_for(suffix).encode([completion(0), bad], "token")


@FORMATS
@given(cut=st.integers(0, 3000), flip=st.integers(0, 3000))
@settings(max_examples=50)
def test_a_cut_or_overwritten_part_is_found_or_harmless(suffix, cut, flip):
    part = codec_for(suffix)
    batch = [completion(k, content=f"answer {k}" * 20) for k in range(20)]
    data = part.encode(batch, "token")
    with pytest.raises(ValueError):
        list(part.decode(data[: min(cut, len(data) - 1)]))
    spoilt = bytearray(data)
    spoilt[flip % len(data)] ^= 0xFF
    with suppress(ValueError):
        assert list(part.decode(bytes(spoilt))) == batch  # a byte that nobody reads


def test_no_flipped_bit_of_a_seal_is_taken_for_a_bug_of_ours():
    part = codec_for("jsonl.zst")
    data = part.encode([completion(0)], "token")
    whole = describe_part(0, part, data)
    for at in range(data.index(b'{"writer"'), len(data)):
        spoilt = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with suppress(ValueError):
            assert describe_part(0, part, spoilt).items == whole.items


def test_both_formats_have_the_same_columns():
    from common.parts.parquet import SCHEMA  # noqa: PLC0415 - only this test needs it

    assert SCHEMA.names == list(to_record(completion(0)))[: len(SCHEMA.names)]
    assert set(SCHEMA.names) == set(to_record(completion(0)))
    fields = set(Completion.__dataclass_fields__)
    assert set(SCHEMA.names) == fields | {"genq_version"}


def test_tool_calls_and_content_parts_survive():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {}}]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
        {"role": "user", "content": "so?"},
    ]
    one = dataclasses.replace(completion(0), messages=messages)
    record = to_record(one)
    assert [m["content"] for m in record["messages"]] == ["What is it?", "", "42", "so?"]
    assert [bool(m["raw"]) for m in record["messages"]] == [True, True, True, False]
    for suffix in SUFFIXES:
        part = codec_for(suffix)
        assert next(iter(part.decode(part.encode([one], "t")))).messages == messages


@FORMATS
def test_the_index_of_a_part_is_the_same_from_the_completions_and_from_the_bytes(suffix):
    batch = [completion(k, verdict="ok" if k % 2 else "truncated") for k in (5, 2, 9)]
    part = codec_for(suffix)
    data = part.encode(batch, "mine")
    index = describe(7, suffix, data, batch, "mine")
    assert index == describe_part(7, part, data)
    assert index.items == [5, 2, 9]
    assert index.verdicts == {"truncated": 1, "ok": 2}


@FORMATS
def test_two_writers_never_make_equal_bodies(suffix):
    batch = [completion(Item(1))]
    part = codec_for(suffix)
    assert part.encode(batch, "a") != part.encode(batch, "b")


def test_another_format_is_a_usage_error():
    with pytest.raises(UsageError, match="csv"):
        codec_for("csv")
