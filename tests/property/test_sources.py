"""Whatever a row holds comes through whole; whatever a file holds, nothing breaks the reader."""

import contextlib
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec import dumps, loads
from producer.sources.chat import canonical_row
from producer.sources.jsonl import read_json
from producer.sources.lines import split_array, split_lines
from producer.sources.records import Fault, Limits, Raw, RowError, StreamError

LINES = st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), max_size=6)


def cut(data, sizes):
    """Cut ``data`` into pieces of the given sizes, and the rest."""
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    yield data[at:]


@given(LINES, st.lists(st.integers(0, 9)), st.integers(0, 30))
def test_lines_survive_any_cut_into_pieces(lines, sizes, limit):
    data = b"".join(line + b"\n" for line in lines)
    found = list(split_lines(cut(data, sizes), limit=limit))
    whole = [(n, line) for n, line in enumerate(lines, start=1)]
    assert [(n, line) for n, line in found if line] == [
        (n, line) for n, line in whole if line and len(line) <= limit
    ]
    assert [n for n, line in found if line is None] == [n for n, line in whole if len(line) > limit]


@given(ROWS, st.lists(st.integers(0, 9)), st.sampled_from([None, 2]), st.booleans())
def test_array_elements_survive_any_cut_into_pieces(rows, sizes, indent, ascii_only):
    data = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    found = list(split_array(cut(data, sizes), limit=10_000))
    assert [json.loads(element) for _, element in found] == json.loads(data)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_array_splitter(data):
    with contextlib.suppress(StreamError):
        list(split_array([b"[", data], limit=50))


@pytest.mark.row("F7")
@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data):
    for one in read_json(io.BytesIO(data), "f", Limits(row_bytes=100)):
        assert isinstance(one, Raw | Fault)


@given(st.lists(st.text(st.characters(), min_size=1).filter(str.strip), max_size=8), st.booleans())
def test_any_text_comes_through_as_it_was(texts, ascii_only):
    lines = [json.dumps({"prompt": text}, ensure_ascii=ascii_only) for text in texts]
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    found = list(read_json(io.BytesIO(data), "f", Limits()))
    for text, one in zip(texts, found, strict=True):
        clean = "".join("�" if "\ud800" <= sign <= "\udfff" else sign for sign in text)
        if isinstance(one, Fault):
            assert not ascii_only  # raw surrogates are not UTF-8
            assert clean != text
        else:
            assert one.value == {"prompt": clean}
            made = canonical_row(0, one.value)
            assert loads(dumps(made))["messages"] == [{"role": "user", "content": clean}]


LARGE = st.recursive(
    st.integers() | st.integers(-(2**66), 2**66) | st.text(st.sampled_from('0123456789"\\:,'))
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('1"\\a'), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


def fits(value):
    if isinstance(value, dict | list):
        return all(map(fits, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or -(2**63) <= value < 2**64


@pytest.mark.row("F7")
@settings(max_examples=300)
@given(st.dictionaries(st.text(max_size=5), LARGE, min_size=1, max_size=4), st.booleans())
def test_a_row_comes_through_to_the_last_digit_or_is_a_fault(row, ascii_only):
    data = json.dumps(row, ensure_ascii=ascii_only).encode()
    (one,) = read_json(io.BytesIO(data), "f", Limits())
    assert isinstance(one, Raw) == fits(row)
    if isinstance(one, Raw):
        assert json.dumps(one.value) == json.dumps(row)


SHAPES = st.sampled_from(["messages", "conversations", "turns", "prompt", "text", "body"])
ANY_ROW = st.dictionaries(
    SHAPES | st.text(max_size=8) | st.sampled_from(["id", "seed", "stop"]), JSON
)


@settings(max_examples=300)
@given(ANY_ROW)
def test_no_row_breaks_the_shapes(raw):
    before = json.dumps(raw)
    try:
        made = canonical_row(0, raw)
    except RowError:
        return
    finally:
        assert json.dumps(raw) == before  # what was given is not changed
    assert made.messages[-1]["role"] in ("user", "tool")
    dumps(made)


@pytest.mark.row("F9")
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_id_is_data(name):
    assert canonical_row(0, {"prompt": "x", "id": name}).id == name
