"""What strangers hand in: each refused with its place and its reason, or taken as it was meant."""

from __future__ import annotations

import gzip
import json
import sys
from typing import NamedTuple

import pytest

from common import codec
from common.errors import Exit
from producer import cli

pytestmark = pytest.mark.row("F7")
GOOD = b'{"prompt":"one"}\n'
IMAGE = {"type": "image_url", "image_url": {"url": "http://example.org/x.png"}}


class Bad(NamedTuple):
    """A file, and what is said of it: where (a line, or 0 for the file as a whole), and why."""

    data: bytes
    line: int
    reason: str
    name: str = "rows.jsonl"


def second(row):
    return GOOD + (row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" + GOOD


REFUSED = {
    "numeric prompt": Bad(second({"prompt": 17}), 2, "prompt must be a string"),
    "no messages": Bad(second({"messages": []}), 2, "there is no message to answer"),
    "unknown role": Bad(
        second({"messages": [{"role": "wizard", "content": "x"}]}), 2, "message 0: unknown role"
    ),
    "image": Bad(
        second({"messages": [{"role": "user", "content": [IMAGE]}]}),
        2,
        "message 0: it holds a part of type image_url; only text can be answered",
    ),
    "11 MB": Bad(second({"prompt": "x" * 11_000_000}), 2, "larger than 10,485,760 bytes"),
    "NaN": Bad(second(b'{"prompt":"x","score":NaN}'), 2, "NaN and Infinity are no JSON"),
    "over 64 bits": Bad(
        second(b'{"id":123456789012345678901,"prompt":"x"}'),
        2,
        "'id' is an integer of over 64 bits, of which readers of JSON lose digits: write it as",
    ),
    "an empty stop string": Bad(
        second({"prompt": "x", "stop": [""]}), 2, "stop: an empty string would end every answer"
    ),
    "invalid UTF-8": Bad(second(b'{"prompt":"\xff"}'), 2, "invalid UTF-8 at byte 12"),
    "deep nesting": Bad(
        second(b'{"prompt":"x","a":' + b"[" * 3000 + b"]" * 3000 + b"}"), 2, "invalid JSON"
    ),
    "truncated zst": Bad(
        codec.compress(GOOD * 300) + codec.compress(GOOD * 200)[:-4],
        300,
        "zstd data is cut short",
        "rows.jsonl.zst",
    ),
    "truncated gz": Bad(
        gzip.compress(GOOD * 500, mtime=0)[:-4], 500, "gzip data is cut short", "rows.jsonl.gz"
    ),
    "bomb": Bad(codec.compress(b" " * 80_000_000), 1, "zstd data unfolds to over 500 times"),
    "gzip bomb": Bad(
        gzip.compress(b" " * 80_000_000, 9, mtime=0), 1, "gzip data unfolds to over 500 times"
    ),
    "a picture": Bad(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" * 9, 1, "invalid UTF-8"),
    "a program": Bad(b"\x7fELF\x02\x01\x01" + bytes(range(128)) * 4, 1, "invalid JSON"),
    "UTF-16": Bad(GOOD.decode().encode("utf-16"), 1, "the file is UTF-16"),
    "Parquet by name only": Bad(b"PAR1 is no Parquet", 1, "Parquet data cannot be read"),
    "empty": Bad(b"", 0, "The data set holds no row that can be used."),
    "blank": Bad(b"\n \r\n\n", 0, "The data set holds no row that can be used."),
}
TAKEN = {
    "10 MB": (second({"prompt": "x" * 10_000_000}), 3, ""),
    "half an emoji": (
        second(b'{"prompt":"\\ud83d"}'),
        3,
        "1 rows with lone surrogates (each became U+FFFD)",
    ),
    "one id, two texts": (
        b'{"id":7,"prompt":"a"}\n{"id":"7","prompt":"b"}\n',
        2,
        "1 rows whose id an earlier row has (each is answered)",
    ),
    "BOM, CRLF, blank lines": (
        b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n") + b"\r\n\n" + GOOD,
        2,
        "",
    ),
    "a key twice": (second(b'{"prompt":3,"prompt":"x"}'), 3, ""),
    "no line end": (GOOD[:-1], 1, ""),
}


@pytest.fixture
def load(monkeypatch, capsys, tmp_path):
    """A dry run without a store: nothing but the data set is looked at."""

    def run(*words, code=0):
        words = ("load", *words, "--model", "m", "--run", "r", "--dry-run")
        monkeypatch.setattr(sys, "argv", ["gen-producer", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert ended.value.code == code, said
        return said

    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_with_its_place(load, tmp_path, case):
    bad = REFUSED[case]
    (tmp_path / bad.name).write_bytes(bad.data)
    said = load(bad.name, code=Exit.INPUT).err
    assert bad.reason in said
    if bad.line:
        assert f"Error: {bad.name}:{bad.line}: " in said


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_odd_and_usable_is_taken_and_said(load, tmp_path, case):
    data, rows, note = TAKEN[case]
    (tmp_path / "rows.jsonl").write_bytes(data)
    said = load("rows.jsonl", "--json")
    assert json.loads(said.out)["rows"] == rows
    assert note in said.err


def test_of_rows_that_are_passed_over_class_and_place_are_told(load, tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(second({"prompt": 17}))
    found = json.loads(load("rows.jsonl", "--on-error", "skip", "--json").out)
    assert (found["rows"], found["skipped"]) == (2, 1)
    assert found["skipped_by_class"] == {"bad_row": 1}
    (fault,) = found["faults"]
    assert (fault["file"], fault["line"], fault["class"]) == ("rows.jsonl", 2, "bad_row")


def test_a_folder_without_data_is_refused(load, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "README.md").write_text("# nothing")
    assert "set holds no data" in load("set", code=Exit.INPUT).err
