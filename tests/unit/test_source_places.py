"""Places of data sets: files, globs, standard input, Parquet, folders of the hub's package."""

import gzip
import io
import os
import sys
import threading
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common import codec
from common.errors import InputError, UsageError
from producer.sources.reader import read_rows
from producer.sources.records import Fault, Limits
from producer.sources.url import sources_of, stem_of

LINES = b'{"prompt":"one"}\n{"prompt":"two"}\n'


def no_bucket(bucket):
    raise AssertionError(bucket)


def read(*datasets):
    return list(read_rows(sources_of(tuple(map(str, datasets)), no_bucket), Limits()))


def prompts(found):
    return [one.value["prompt"] for one in found]


def test_a_glob_is_read_in_order_whatever_the_packing(tmp_path):
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(LINES))
    (tmp_path / "a.jsonl.zst").write_bytes(codec.compress(LINES))
    (tmp_path / "c.json").write_bytes(b'[{"prompt":"three"}]')
    (tmp_path / "d.txt").write_bytes(b"no")
    found = read(f"{tmp_path}/*.json*")
    assert prompts(found) == ["one", "two", "one", "two", "three"]
    assert [Path(one.place.file).name[0] for one in found] == list("aabbc")


def test_packing_is_seen_without_its_name(tmp_path):
    (tmp_path / "plain").write_bytes(gzip.compress(LINES))
    assert prompts(read(tmp_path / "plain")) == ["one", "two"]


def test_a_file_whose_name_looks_like_a_glob(tmp_path):
    (tmp_path / "a[1].jsonl").write_bytes(LINES)
    assert prompts(read(tmp_path / "a[1].jsonl")) == ["one", "two"]


def test_standard_input(monkeypatch):
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(LINES))))
    monkeypatch.setattr(sys, "stdin", stdin)
    found = read("-")
    assert prompts(found) == ["one", "two"]
    assert str(found[1].place) == "-:2"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("missing.jsonl", "cannot be read"),
        ("*.jsonl", "No file matches"),
        (".", "holds no data"),
        ("http://example.org/x.jsonl", "cannot be read"),
    ],
)
def test_what_is_not_there_is_said(name, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=what):
        read(name)


@pytest.mark.row("F12")
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    rows = read_rows(sources_of((str(path),), no_bucket), Limits())
    next(rows)
    with path.open("ab") as file:
        file.write(LINES)
    os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match="changed while it was read"):
        list(rows)


def test_a_named_pipe_is_read_to_its_end(tmp_path):
    pipe = tmp_path / "rows"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[LINES])
    writer.start()
    assert prompts(read(pipe)) == ["one", "two"]
    writer.join()


def test_parquet_rows(tmp_path):
    when = pa.scalar(1_700_000_000, pa.timestamp("s"))
    table = pa.table(
        {
            "prompt": ["one", None, "three"],
            "messages": [None, [{"role": "user", "content": "two", "name": None}], None],
            "score": [0.5, float("nan"), None],
            "price": [Decimal("1.10")] * 3,
            "when": [when] * 3,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    found = read(tmp_path / "a.parquet")
    assert [one.place.line for one in found] == [1, 2, 3]
    first, second, third = (one.value for one in found)
    assert first == {
        "prompt": "one",
        "score": 0.5,
        "price": "1.10",
        "when": "2023-11-14T22:13:20",
    }
    assert second["messages"] == [{"role": "user", "content": "two"}]
    assert second["score"] is None
    assert "score" not in third


def test_parquet_bytes_are_a_fault_and_broken_files_end(tmp_path):
    pq.write_table(pa.table({"prompt": ["x"], "raw": [b"\x00"]}), tmp_path / "a.parquet")
    (fault,) = read(tmp_path / "a.parquet")
    assert isinstance(fault, Fault)
    assert "bytes" in fault.reason
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[:-6])
    (fault,) = read(tmp_path / "b.parquet")
    assert "Parquet data cannot be read" in fault.reason


def test_a_folder_through_the_hubs_package(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(LINES)
    found = read(f"hf://{folder}")
    assert prompts(found) == ["one", "two"]
    with pytest.raises(UsageError, match="unknown option 'spilt'"):
        read(f"hf://{folder}?spilt=train")
    with pytest.raises(InputError, match="cannot be read"):
        read(f"hf://{folder}?split=test")


@pytest.mark.parametrize("name", ["hf://gsm8k", "hf://datasets/gsm8k", "hf://gsm8k/", "hf://"])
def test_a_name_without_its_owner_is_refused(name):
    with pytest.raises(UsageError, match="does not name OWNER/NAME"):
        read(name)


def test_without_the_hubs_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match="`datasets`, which is not installed"):
        read("HuggingFaceH4/ultrachat_200k")


@pytest.mark.parametrize(
    ("dataset", "stem"),
    [
        ("data/prompts.jsonl.gz", "prompts"),
        ("s3://b/x/rows.parquet", "rows"),
        ("hf://org/Name_200k?split=x", "Name_200k"),
        ("shards/part-*.jsonl", "part"),
    ],
)
def test_names_that_could_name_a_run(dataset, stem):
    assert stem_of(dataset) == stem
