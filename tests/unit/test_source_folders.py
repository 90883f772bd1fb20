"""Folders of data, Arrow files and tables: read whole and in order, and never read twice."""

from __future__ import annotations

import csv
import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import InputError, UsageError
from producer.sources.folder import data_files
from producer.sources.reader import read_rows
from producer.sources.records import Fault, Limits
from producer.sources.url import sources_of

LINE = b'{"prompt":"one"}\n'
IMAGES = {"prompt": ["what is it?"], "image": [{"bytes": b"\x89PNG", "path": "x.png"}]}


def no_bucket(bucket):
    raise AssertionError(bucket)


def read(place, split=None, limits=Limits()):  # noqa: B008 - frozen
    return list(read_rows(sources_of((str(place),), no_bucket, split=split), limits))


def prompts(found):
    assert not [one for one in found if isinstance(one, Fault)], found
    return [one.value["prompt"] for one in found]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What the datasets package itself writes."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import datasets  # noqa: PLC0415 - a second to import

    datasets.disable_progress_bars()
    folder = tmp_path_factory.mktemp("saved")
    rows = [
        {
            "prompt": f"p{n}",
            "messages": [{"role": "user", "content": f"p{n}"}],
            "id": n,
            "max_tokens": n or None,
        }
        for n in range(2500)
    ]
    whole = datasets.Dataset.from_list(rows)
    whole.save_to_disk(folder / "set", num_shards=3)
    parts = {"train": whole.select(range(2)), "test": whole.select(range(2, 5))}
    datasets.DatasetDict(parts).save_to_disk(folder / "dict")
    return folder


def test_a_saved_data_set_is_read_whole_and_in_its_order(saved):
    found = read(saved / "set")
    assert prompts(found) == [f"p{n}" for n in range(2500)]
    assert found[0].value == {
        "prompt": "p0",
        "messages": [{"role": "user", "content": "p0"}],
        "id": 0,
    }
    assert str(found[-1].place).endswith("data-00002-of-00003.arrow:833")


def test_of_a_dictionary_of_splits_one_is_read(saved):
    assert prompts(read(saved / "dict", "test")) == ["p2", "p3", "p4"]
    with pytest.raises(InputError, match="holds 2 splits") as caught:
        read(saved / "dict")
    assert "train, test" in caught.value.why
    with pytest.raises(InputError, match="no split 'dev'"):
        read(saved / "dict", "dev")
    with pytest.raises(InputError, match="holds one split"):
        read(saved / "set", "test")


def test_a_part_that_is_missing_is_named(saved, tmp_path):
    state = (saved / "set" / "state.json").read_bytes()
    (tmp_path / "state.json").write_bytes(state)
    with pytest.raises(InputError, match=r"data-00000-of-00003\.arrow is not there"):
        read(tmp_path)
    (tmp_path / "state.json").write_bytes(b"[]")
    with pytest.raises(InputError, match=r"state\.json cannot be read"):
        read(tmp_path)


@pytest.mark.row("F7")
def test_arrow_files_of_both_kinds_and_what_is_cut_of_them(tmp_path):
    table = pa.table({"prompt": [f"p{n}" for n in range(1200)]})
    with (
        pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=500)
    with (
        pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=500)
    for name in ("file", "stream"):
        assert len(prompts(read(tmp_path / f"{name}.arrow"))) == 1200
        whole = (tmp_path / f"{name}.arrow").read_bytes()
        for cut in (8, len(whole) // 2, 30):
            (tmp_path / "cut.arrow").write_bytes(whole[:-cut])
            *rows, fault = read(tmp_path / "cut.arrow")
            assert isinstance(fault, Fault)
            assert "Arrow data cannot be read" in fault.reason
            assert fault.place.line == len(rows) + 1


def test_images_in_a_column_are_a_fault_of_the_row(tmp_path):
    pq.write_table(pa.table(IMAGES), tmp_path / "a.parquet")
    (fault,) = read(tmp_path)
    assert isinstance(fault, Fault)
    assert "bytes" in fault.reason


def test_a_folder_is_all_its_data_files_sorted(tmp_path):
    for n in (2, 1):
        pq.write_table(pa.table({"prompt": [f"p{n}"]}), tmp_path / f"{n}.parquet")
    (tmp_path / "sub").mkdir()
    pq.write_table(pa.table({"prompt": ["p3"]}), tmp_path / "sub" / "0.parquet")
    for name in ("README.md", ".cache.parquet", "dataset_info.json", "_tmp.parquet"):
        (tmp_path / name).write_bytes(b"no")
    assert prompts(read(tmp_path)) == ["p1", "p2", "p3"]


def names(*found, split=None):
    return data_files("place", found, lambda _name: b"{}", split)


def test_splits_in_names_are_never_mixed():
    layout = ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet")
    assert names(*layout, split="test") == [layout[1]]
    assert names("train/a.jsonl", "train/b.jsonl.gz") == ["train/a.jsonl", "train/b.jsonl.gz"]
    assert names("training.jsonl", "latest.jsonl") == ["latest.jsonl", "training.jsonl"]
    with pytest.raises(InputError, match="2 splits") as caught:
        names(*layout)
    assert caught.value.fix == "--split test"
    with pytest.raises(InputError, match="no split 'train'"):
        names("a.jsonl", split="train")


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ((), "holds no data"),
        (("README.md", "model.safetensors"), "holds no data"),
        (("a.jsonl", "a.parquet"), "holds JSON and Parquet files"),
    ],
)
def test_a_folder_that_is_no_one_data_set_is_refused(found, what):
    with pytest.raises(InputError, match=what):
        names(*found)


def test_a_split_of_what_has_none_is_a_wrong_flag(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINE)
    for place in (tmp_path / "a.jsonl", "-"):
        with pytest.raises(UsageError, match="has no splits"):
            read(place, "train")


def table(path, *records, **options):
    with path.open("w", newline="") as file:
        csv.writer(file, **options).writerows(records)
    return path


def test_tables_are_rows_of_text_with_lines_as_places(tmp_path):
    chat = json.dumps([{"role": "user", "content": "Hi"}])
    path = table(
        tmp_path / "a.csv",
        ["prompt", "id", "max_tokens", "messages"],
        ["two\nlines, quoted", "007", "5", ""],
        ["17", "", "", ""],
        ["", "x", "2.5", chat],
    )
    first, second, third = read(path)
    assert first.value == {"prompt": "two\nlines, quoted", "id": "007", "max_tokens": 5}
    assert (second.value, second.place.line) == ({"prompt": "17"}, 4)
    assert third.value["messages"] == [{"role": "user", "content": "Hi"}]
    packed = tmp_path / "b.csv.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + path.read_bytes()))
    assert [one.value for one in read(packed)] == [first.value, second.value, third.value]
    tabs = table(tmp_path / "c.tsv", ["prompt", "id"], ["a,b", "1"], delimiter="\t")
    assert read(tabs)[0].value == {"prompt": "a,b", "id": "1"}


@pytest.mark.row("F7")
@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"prompt,id\na,b\nc\nd,e\n", 3, "it has 1 cells, and the first line 2"),
        (b"prompt,id\na,b\n\xff,c\nd,e\n", 3, "invalid UTF-8"),
        (b"prompt,prompt\na,b\n", 1, "two columns have one name"),
        (b'prompt\na\n"b\n', 3, "cannot be read on"),
        (b"\xff\xfe\x00\n1\n", 1, "not the UTF-8 names of columns"),
        (gzip.compress(b"prompt\na\nb\n" * 99, mtime=0)[:-9], 2, "cut short"),
    ],
)
def test_a_bad_table_is_a_fault_with_its_line(tmp_path, data, line, reason):
    (tmp_path / "a.csv").write_bytes(data)
    (fault,) = [one for one in read(tmp_path / "a.csv") if isinstance(one, Fault)]
    assert reason in fault.reason
    assert fault.place.line >= line
    assert "cut" in reason or fault.place.line == line


def test_a_cell_beyond_the_limit_is_a_fault(tmp_path):
    path = table(tmp_path / "a.csv", ["prompt"], ["x" * 200])
    (fault,) = read(path, limits=Limits(row_bytes=100))
    assert isinstance(fault, Fault)
