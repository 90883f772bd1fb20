"""One pass over a data set: shards, digests, places, faults and notes."""

import gzip
import hashlib
import io
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common import codec
from common.build import build
from common.errors import InputError
from common.records import Row, RunSettings, Sampling
from producer.load.spool import ReadOptions, spool, spool_folder
from producer.load.tally import Tally
from producer.manifest import Wishes, settings_differences
from producer.sources.records import Limits
from producer.sources.url import Source, sources_of


def read(folder, data, **options):
    path = folder / "rows.jsonl"
    path.write_bytes(data)
    into = folder / "spool"
    into.mkdir(exist_ok=True)
    return spool(sources_of((str(path),), lambda _: None), ReadOptions(**options), into)


def numbered(count):
    return b"".join(b'{"prompt":"p%d","id":"%d"}\n' % (n, n % 1500) for n in range(count))


def test_rows_are_cut_into_shards_of_a_thousand(tmp_path):
    found = read(tmp_path, numbered(2500))
    assert [(s.first_row, s.rows) for s in found.shards] == [(0, 1000), (1000, 1000), (2000, 500)]
    assert found.rows == 2500
    for number, shard in enumerate(found.shards):
        lines = codec.decompress(found.packed(number).read_bytes(), limit_bytes=2**30)
        assert hashlib.sha256(lines).hexdigest() == shard.sha256
        rows = [build(Row, codec.loads(line)) for line in lines.split(b"\n")[:-1]]
        assert [row.i for row in rows] == list(range(shard.first_row, shard.first_row + shard.rows))
    assert str(found.place(2345)).endswith("rows.jsonl:2346")
    assert found.notes["rows whose id an earlier row has (each is answered)"] == 1000


def test_the_fingerprint_is_of_rows_and_their_order(tmp_path):
    lines = numbered(10).splitlines(keepends=True)
    one = read(tmp_path, b"".join(lines)).fingerprint
    assert read(tmp_path, b"\n".join(lines)).fingerprint == one  # blank lines are no rows
    assert read(tmp_path, b"".join(lines[::-1])).fingerprint != one
    assert read(tmp_path, b"".join(lines[:-1])).fingerprint != one


def test_a_bad_row_stops_the_pass_with_its_place(tmp_path):
    with pytest.raises(InputError) as caught:
        read(tmp_path, b'{"prompt":"x"}\n{"prompt":\n')
    assert "rows.jsonl:2: invalid JSON" in caught.value.what
    assert "--on-error skip" in caught.value.fix


def test_skipped_rows_are_counted_and_the_first_ten_kept(tmp_path):
    found = read(tmp_path, b'{"prompt":"x"}\n' + b"nonsense\n" * 12, skip_faults=True)
    assert (found.rows, found.skipped, len(found.faults)) == (1, 12, 10)
    assert found.faults[0].place.line == 2


def cut_parquet():
    whole = io.BytesIO()
    pq.write_table(pa.table({"prompt": [f"prompt {n}" for n in range(1000)]}), whole)
    return whole.getvalue()[: len(whole.getvalue()) // 2]


RANDOM = bytes(range(255, 0, -1)) * 4
UNREADABLE = {
    "cut.parquet": (cut_parquet(), "the Parquet data cannot be read"),
    "cut.jsonl.gz": (gzip.compress(numbered(1000))[:2000], "the gzip data is cut short"),
    "cut.json": (b'[{"prompt":"x"},', "the JSON array is cut short"),
    "cut.csv": (b'prompt\nx\n"y', "the table cannot be read on"),
    "random.parquet": (RANDOM, "the file is no Parquet file"),
    "random.jsonl.gz": (RANDOM, "the file is no gzip file"),
    "random.jsonl.zst": (RANDOM, "the file is no zstd file"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_to_its_end_is_no_row_to_pass_over(tmp_path, name):
    data, words = UNREADABLE[name]
    (tmp_path / name).write_bytes(data)
    (tmp_path / "ok.jsonl").write_bytes(numbered(2))
    sources = sources_of((str(tmp_path / "ok.jsonl"), str(tmp_path / name)), lambda _: None)
    with pytest.raises(InputError) as caught:
        spool(sources, ReadOptions(skip_faults=True), tmp_path)
    assert f"{name}:" in caught.value.what
    assert words in caught.value.what
    assert "--on-error" not in caught.value.fix


@pytest.mark.parametrize("name", ["unpacked.jsonl.gz", "rows.jsonl.zst"])
def test_text_is_read_whatever_its_name_says(tmp_path, name):
    (tmp_path / name).write_bytes('{"prompt":"ü"}\n'.encode() * 100)
    found = spool(sources_of((str(tmp_path / name),), lambda _: None), ReadOptions(), tmp_path)
    assert found.rows == 100


def test_nothing_usable_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no row that can be used"):
        read(tmp_path, b"\n\n")


def test_the_limit_takes_the_first_rows(tmp_path):
    assert read(tmp_path, numbered(1500), limit=1000).rows == 1000


@pytest.mark.row("F6")
def test_too_deep_and_too_large_rows_are_faults(tmp_path):
    deep = b'{"prompt":"x","deep":' + b"[" * 400 + b"]" * 400 + b"}\n"
    large = b'{"prompt":"' + b"y" * 500 + b'"}\n'
    good = b'{"prompt":"x"}\n'
    limits = Limits(row_bytes=900)
    found = read(tmp_path, deep + large * 2 + good, skip_faults=True, limits=limits)
    assert [fault.place.line for fault in found.faults] == [1]
    assert "cannot be written" in found.faults[0].reason
    found = read(tmp_path, large + good, skip_faults=True, limits=Limits(row_bytes=520))
    assert "larger than" in found.faults[0].reason


def test_what_cannot_be_carried_out_is_noted(tmp_path):
    found = read(tmp_path, b'{"prompt":"\\ud800","tools":[]}\n')
    assert [n for n in found.notes.values() if n] == [1, 1]


def test_folders_of_killed_passes_are_removed_and_living_ones_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = tmp_path / "genq-load-dead"
    dead.mkdir()
    (dead / "lock").touch()
    with spool_folder() as living:
        assert not dead.exists()
        with spool_folder() as other:
            assert living.exists()
            assert other != living
    assert list(tmp_path.iterdir()) == []


@pytest.mark.row("F8")
def test_repeats_are_tallied(tmp_path):
    with Tally(tmp_path) as tally:
        for text in ["a", "b", "a", "a", "ü"]:
            tally.add(text)
        assert tally.repeated() == 2
    assert list(tmp_path.iterdir()) == []


def test_settings_differ_by_name_with_both_values():
    old = RunSettings(model="/models/Qwen3", model_fingerprint="", seed=1)
    same = RunSettings(model="hub/Qwen3", model_fingerprint="a" * 64, seed=1)
    assert settings_differences(old, same) == []
    wishes = Wishes(samples=4, sampling=Sampling(temperature=0.5))
    new = wishes.over(old, lambda _: "")
    assert settings_differences(old, new) == [
        "samples: was 1, now 4",
        "temperature: was not set, now 0.5",
    ]


class Short:
    """A check of rows by their letters, in the place of the one by tokens."""

    calls = 0

    def doubt(self, row):
        return len(row.messages[0]["content"]) if row.messages[0]["content"] > "m" else 0

    def refusals(self, rows):
        self.calls += 1
        return ["too long" if row.messages[0]["content"] > "x" else None for row in rows]


def test_rows_in_doubt_wait_for_others_and_the_order_stays(tmp_path):
    letters = [chr(ord("a") + n * 7 % 26) for n in range(2000)]
    data = b"".join(b'{"prompt":"%s"}\n' % one.encode() for one in letters)
    check = Short()
    (tmp_path / "whole").mkdir()
    sources = [Source("f", lambda: nullcontext(io.BytesIO(data)))]
    found = spool(sources, ReadOptions(skip_faults=True), tmp_path / "whole", check=check)
    kept = [one for one in letters if one <= "x"]
    assert (found.rows, found.kinds["too_long"]) == (len(kept), 2000 - len(kept))
    assert [found.place(n).line for n in range(3)] == [1, 2, 3]
    places = [found.place(n).line for n in range(found.rows)]
    assert places == [n for n, one in enumerate(letters, start=1) if one <= "x"]
    assert check.calls < 20
    (tmp_path / "some").mkdir()
    some = spool(sources, ReadOptions(limit=7), tmp_path / "some", check=check)
    assert some.rows == 7  # the eighth is the first that is refused, and not asked for


def test_a_row_that_is_too_long_stops_the_pass_before_later_faults(tmp_path):
    data = b'{"prompt":"a"}\n{"prompt":"z"}\n{"prompt":3}\n'
    sources = [Source("f", lambda: nullcontext(io.BytesIO(data)))]
    with pytest.raises(InputError, match="f:2: too long"):
        spool(sources, ReadOptions(), tmp_path, check=Short())
