"""Fetching a run's output, and the lines that open it."""

from __future__ import annotations

import hashlib
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.ids import RunName
from common.objectstore import ObjectStat
from deploy.results import download, opening_lines, relative


class Objects:
    """A store of three calls that remembers what was read."""

    def __init__(self, objects):
        self.objects = objects
        self.read = []

    def list(self, prefix, *, start_after=""):
        for key, data in sorted(self.objects.items()):
            if key.startswith(prefix):
                yield ObjectStat(key, len(data), hashlib.md5(data).hexdigest())

    def get(self, key):
        self.read.append(key)
        return self.objects[key]


OUTPUT = {
    "r/_SUCCESS": b"",
    "r/data/part-00000000.parquet": b"first",
    "r/data/part-00000001.parquet": b"second",
    "r/index/part-00000000.json": b"{}",
    "r/manifest.json": b"{}",
    "r/prompts/ff/000000.jsonl.zst": b"rows",
    "r/run.json": b"{}",
    "r2/data/part-00000000.parquet": b"another run's",
}


def test_the_output_is_copied_and_success_comes_last(tmp_path):
    store = Objects(OUTPUT)
    files = download(store, RunName("r"), tmp_path)
    assert [file.name for file in files] == ["part-00000000.parquet", "part-00000001.parquet"]
    assert files[0].read_bytes() == b"first"
    assert store.read[-1] == "r/_SUCCESS"
    found = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert found == {
        "_SUCCESS",
        "data/part-00000000.parquet",
        "data/part-00000001.parquet",
        "manifest.json",
        "run.json",
    }


def test_a_second_fetch_reads_only_what_is_missing_or_cut(tmp_path):
    download(Objects(OUTPUT), RunName("r"), tmp_path)
    (tmp_path / "data" / "part-00000001.parquet").write_bytes(b"sec")
    (tmp_path / "manifest.json").unlink()
    store = Objects(OUTPUT)
    download(store, RunName("r"), tmp_path)
    assert store.read == ["r/data/part-00000001.parquet", "r/manifest.json", "r/_SUCCESS"]
    store.read.clear()
    download(store, RunName("r"), tmp_path)
    assert store.read == []


def test_after_another_end_no_object_of_the_earlier_one_stays(tmp_path):
    """A dead letter was queued again; the last part was lost, and made again of the same size."""
    download(Objects(OUTPUT | {"r/_SUCCESS": b"1 of 2"}), RunName("r"), tmp_path)
    later = OUTPUT | {
        "r/_SUCCESS": b"2 of 2",
        "r/manifest.json": b"[]",
        "r/data/part-00000001.parquet": b"SECOND",
    }
    files = download(Objects(later), RunName("r"), tmp_path)
    assert [file.read_bytes() for file in files] == [b"first", b"SECOND"]
    assert (tmp_path / "manifest.json").read_bytes() == b"[]"
    assert (tmp_path / "_SUCCESS").read_bytes() == b"2 of 2"


def test_what_the_store_holds_no_longer_goes_and_what_is_not_ours_stays(tmp_path):
    download(Objects(OUTPUT), RunName("r"), tmp_path)
    (tmp_path / "data" / "notes.txt").write_text("precious")
    gone = ("r/_SUCCESS", "r/data/part-00000001.parquet")
    left = {key: data for key, data in OUTPUT.items() if key not in gone}
    files = download(Objects(left), RunName("r"), tmp_path)
    assert [file.name for file in files] == ["part-00000000.parquet"]
    assert not (tmp_path / "_SUCCESS").exists()
    assert (tmp_path / "data" / "notes.txt").exists()


def test_a_folder_is_not_called_complete_while_some_of_it_is_old(tmp_path):
    download(Objects(OUTPUT), RunName("r"), tmp_path)
    store = Objects(OUTPUT | {"r/manifest.json": b"[]"})
    there = []
    get = store.get
    store.get = lambda key: there.append((tmp_path / "_SUCCESS").exists()) or get(key)
    download(store, RunName("r"), tmp_path)
    assert there == [False, False]


@pytest.mark.parametrize("name", ["plain", "with space", "quo'te", "täg$HOME`x`"])
def test_the_duckdb_line_runs_as_printed_whatever_the_folder_is_called(tmp_path, monkeypatch, name):
    folder = tmp_path / name / "data"
    folder.mkdir(parents=True)
    table = pa.table({"row_id": ["a"], "verdict": ["ok"], "content": ["hello"]})
    pq.write_table(table, folder / "part-00000000.parquet")
    monkeypatch.chdir(tmp_path)
    line, _ = opening_lines(folder, "parquet")
    assert "hello" in subprocess.check_output(line, shell=True, text=True)


def test_paths_are_shown_from_the_working_folder_where_they_are_in_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relative(tmp_path / "a" / "b") == "a/b"
    assert relative("/usr/bin") == "/usr/bin"
