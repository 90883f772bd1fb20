"""Files of strangers: what is too much is a fault with its place, and nothing has been stored."""

from __future__ import annotations

import gc
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.codec import compress
from tests.support.producers import Producer

GOOD = b'{"prompt": "hello"}\n'
DEEP = 100_000
BOMB_BYTES = 80 << 20  # over the floor under which nothing counts as a bomb
IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}}


def message(content):
    return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


def nested(before, after="", depth=300):
    return GOOD + (before + "[" * depth + "]" * depth + after).encode() + b"\n" + GOOD


UNWRITABLE = {  # read, and nested deeper than what can be written again
    "metadata": nested('{"prompt": "p", "x": ', "}"),
    "an id": nested('{"prompt": "p", "id": ', "}"),
    "a message": nested('{"messages": [{"role": "user", "content": "p", "x": ', "}]}"),
    "what is dropped": nested(
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "p", "x": ', "}]}]}"
    ),
    "a lone surrogate": nested('{"prompt": "\\ud800", "x": ', "}", depth=700),
}
FILES = {  # a bomb is told by the last line before it
    "a row that is too long": ("rows.jsonl", GOOD + b'{"prompt": "' + b"x" * 3000 + b'"}\n', 2),
    "JSON that is too deep": ("rows.jsonl", GOOD * 2 + b"[" * DEEP + b"]" * DEEP + b"\n", 3),
    "the same, escaped": ("rows.jsonl", GOOD + b'{"p": "\\ud800", "x": ' + b"[" * DEEP + b"\n", 2),
    "a gzip bomb": ("rows.jsonl.gz", gzip.compress(GOOD + b" " * BOMB_BYTES), 1),
    "a zstd bomb": ("rows.jsonl.zst", compress(GOOD + b" " * BOMB_BYTES), 1),
    "an image": ("rows.jsonl", GOOD + message([IMAGE]) + b"\n", 2),
}


@pytest.fixture(autouse=True)
def _collected_before():
    """What other tests left is not ended deep in a recursion, where nothing can be reported."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def producer(service_env, monkeypatch, capsys):
    return Producer({**service_env, "GENQ_MAX_ROW_BYTES": "2000"}, monkeypatch, capsys)


@pytest.mark.row("F6")
@pytest.mark.parametrize("what", FILES)
def test_too_much_is_a_fault_with_its_place(producer, store, tmp_path, what):
    name, data, line = FILES[what]
    path = tmp_path / name
    path.write_bytes(data)
    said = producer("load", path, "--model", "m", code=3)
    assert f"{name}:{line}: " in said.err
    assert "169.254" not in said.err
    assert list(store.list("")) == []


def test_a_parquet_bomb_is_a_fault_before_it_is_read(producer, store, tmp_path):
    path = tmp_path / "rows.parquet"
    table = pa.table({"prompt": [" " * (BOMB_BYTES // 4)] * 4})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    said = producer("load", path, "--model", "m", code=3)
    assert "rows.parquet:1: the Parquet data unfolds to over 500 times" in said.err
    assert list(store.list("")) == []


@pytest.mark.parametrize("what", UNWRITABLE)
def test_a_row_nested_deeper_than_can_be_written_is_passed_over(producer, tmp_path, what):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(UNWRITABLE[what])
    words = (path, "--model", "m", "--context", 9000)
    assert "rows.jsonl:2: " in producer("load", *words, code=3).err
    said = producer("load", *words, "--on-error", "skip", "--json").out
    assert (json.loads(said)["rows"], json.loads(said)["skipped"]) == (2, 1)
    planned = json.loads(producer("plan", *words, "--on-error", "skip", "--json").out)
    assert (planned["rows"]["usable"], planned["refused"]["rows"]) == (2, 1)
