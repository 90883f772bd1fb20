"""`gen-producer export` over real parts: files that are whole or not there, and every item told."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from common import codec
from common.errors import Exit
from common.failpoint import VARIABLE
from common.objectstore import RunPaths
from producer.cli import cli
from producer.export.files import WholeFile
from tests.support import forge
from tests.support.committed import add_parts, dead_letter, store_child, store_committed
from tests.support.completions import completion
from tests.support.failpoints import points_of


@pytest.fixture
def export(store_settings, monkeypatch):
    """Run the command in this process; returns its exit code, or the error, and its JSON."""
    for name, value in store_settings.items():
        monkeypatch.setenv(f"GENQ_{name.upper()}", str(value))

    def run(*words):
        done = CliRunner().invoke(cli, ["export", *words, "--json"], standalone_mode=False)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            return done.exception, None
        return done.return_value, json.loads(done.stdout) if done.stdout else None

    return run


def lines(path):
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        data = codec.decompress(data, limit_bytes=1 << 20)
    return [json.loads(line) for line in data.splitlines()]


def mixed(store, suffix="parquet"):
    """Four ok completions and a truncated one in two parts, and a dead letter."""
    first = [completion(0), completion(1, verdict="truncated", finish_reason="length")]
    rest = [completion(k) for k in range(2, 5)]
    dead = [dead_letter(5, row_id="row 5")]
    return store_committed(store, "r", [first, rest], suffix=suffix, dead=dead)


@pytest.fixture
def mixed_run(store):
    return mixed(store)


@pytest.mark.parametrize(
    ("suffix", "name"),
    [("parquet", "out.jsonl"), ("jsonl.zst", "out.jsonl.gz"), ("jsonl.zst", "out.jsonl.zst")],
)
def test_a_file_holds_the_ok_ones_in_order_and_the_rest_is_counted(
    store, export, tmp_path, suffix, name
):
    mixed(store, suffix)
    _, told = export("r", "--to", "specforge", str(tmp_path / name))
    assert [row["id"] for row in lines(tmp_path / name)] == ["row 0", "row 2", "row 3", "row 4"]
    assert (told["completions"], told["exported"], told["rows"]) == (5, 4, 4)
    assert told["excluded"] == {"truncated": 1}
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_every_item_of_a_finished_run_is_in_the_output_or_in_the_error_file(
    store, export, tmp_path
):
    mixed(store)
    out = tmp_path / "out.jsonl"
    _, told = export("r", "--to", "openai-batch", str(out))
    good, bad = lines(out), lines(tmp_path / "out.errors.jsonl")
    assert [line["custom_id"] for line in good] == ["row 0", "row 2", "row 3", "row 4"]
    assert [(line["custom_id"], line["error"]["code"]) for line in bad] == [
        ("row 1", "truncated"),
        ("row 5", "empty"),
    ]
    assert told["rows"] + told["errors"] == told["items"] == 6


def test_verdicts_are_chosen_and_child_runs_taken_where_they_are_ok(store, export, tmp_path):
    parent = mixed(store)

    def ids(name, *options):
        export("r", "--to", "speculators", str(tmp_path / name), *options)
        return [row["input_ids"][2] for row in lines(tmp_path / name)]

    assert ids("a.jsonl", "--include", "truncated") == [0, 1, 2, 3, 4]
    assert ids("b.jsonl", "--only", "truncated") == [1]
    store_child(store, parent, "r-more", [1], [[completion(0, input_ids=[1, 2, 77])]])
    assert ids("c.jsonl") == [0, 2, 3, 4, 77]


def test_standard_output_holds_rows_alone_and_the_report_is_beside_it(store, export):
    mixed(store)
    done = CliRunner().invoke(cli, ["export", "r", "--to", "messages", "-", "--json"])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["messages"][-1]["content"] for row in rows] == [
        f"answer to {k}" for k in (0, 2, 3, 4)
    ]
    assert json.loads(done.stderr)["excluded"] == {"truncated": 1}
    packed = CliRunner().invoke(cli, ["export", "r", "--to", "messages", "--compress", "gz", "-"])
    assert len(gzip.decompress(packed.stdout_bytes).splitlines()) == 4


def test_what_is_there_already_is_not_written_over(store, export, tmp_path):
    mixed(store)
    out = tmp_path / "prompts.jsonl"
    out.write_text("precious")
    error, _ = export("r", "--to", "messages", str(out))
    assert error.exit_code == 7
    assert "--overwrite" in error.fix
    assert out.read_text() == "precious"
    export("r", "--to", "messages", "--overwrite", str(out))
    assert len(lines(out)) == 4
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "r-part-00000000.jsonl").write_text("precious")
    error, _ = export("r", "--to", "messages", str(folder))
    assert error.exit_code == 7
    assert (folder / "r-part-00000000.jsonl").read_text() == "precious"


def test_a_folder_is_gone_on_with_and_only_what_changed_is_written_again(store, export, tmp_path):
    mixed(store)
    folder = tmp_path / "folder"
    first, second = (folder / f"r-part-0000000{n}.jsonl" for n in range(2))
    export("r", "--to", "messages", f"{folder}/")
    before = [path.stat().st_ino for path in (first, second)]
    add_parts(store, "r", [[completion(5)]], start=2)
    second.unlink()
    _, told = export("r", "--to", "messages", f"{folder}/")
    assert first.stat().st_ino == before[0]
    assert told["exported"] == 5
    assert sum(len(lines(path)) for path in folder.glob("*.jsonl")) == 5
    error, _ = export("r", "--to", "messages", "--include", "truncated", str(folder))
    assert error.exit_code == 7
    assert "another export" in error.what
    _, told = export("r", "--to", "messages", "--include", "truncated", str(folder), "--overwrite")
    assert told["exported"] == 6


def held(folder):
    """The items whose rows or errors lie in a folder, each as often as it is there."""
    files = [path for path in folder.iterdir() if ".jsonl" in path.name]
    return sorted(line["custom_id"] for path in files for line in lines(path))


def test_a_folder_keeps_no_rows_of_parts_that_are_gone_or_count_no_longer(store, export, tmp_path):
    parent = mixed(store)
    child = store_child(store, parent, "r-more", [1], [[completion(0, row_id="row 1")]])
    folder = tmp_path / "folder"
    words = ("r", "--to", "openai-batch", f"{folder}/")
    everything = [f"row {k}" for k in range(6)]
    export(*words)
    assert held(folder) == everything
    (folder / "notes.txt").write_text("precious")
    # Nothing of the child's part counts any more: of two children as old, the first by name does.
    store_child(store, parent, "other", [1], [[completion(0, row_id="row 1")]])
    export(*words)
    assert held(folder) == everything
    assert not list(folder.glob(f"{child.run}-*"))
    # A lost part is made again as two.
    last = RunPaths("r").part(1, "parquet")
    data, metadata = store.get(last), store.stat(last).metadata
    add_parts(store, "r", [[completion(3), completion(4)], [completion(2)]], start=1)
    export(*words)
    assert held(folder) == everything
    store.delete(RunPaths("r").part(2, "parquet"))
    store.put(last, data, metadata=metadata)
    _, told = export(*words)
    assert held(folder) == everything
    assert told["rows"] + told["errors"] == told["items"]
    assert (folder / "notes.txt").read_text() == "precious"


def test_a_part_that_comes_back_is_written_again_with_its_errors(store, export, tmp_path):
    store_committed(store, "r", [[completion(0)], [completion(1, verdict="truncated")]])
    words = ("r", "--to", "openai-batch", f"{tmp_path}/folder/")
    last = RunPaths("r").part(1, "parquet")
    data, metadata = store.get(last), store.stat(last).metadata
    export(*words)
    store.delete(last)
    export(*words)
    assert held(tmp_path / "folder") == ["row 0"]
    store.put(last, data, metadata=metadata)
    export(*words)
    assert held(tmp_path / "folder") == ["row 0", "row 1"]


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_dead_letters_of_an_earlier_end_do_not_stay_in_a_folder(
    store, export, tmp_path, goes_on
):
    mixed(store)
    folder, paths = tmp_path / "folder", RunPaths("r")
    words = ("r", "--to", "openai-batch", f"{folder}/")
    export(*words)
    assert (folder / "r-failed.errors.jsonl").exists()
    if goes_on:  # as a requeue leaves it
        store.delete(paths.success)
    else:
        store.put(paths.failed, b"")
        add_parts(store, "r", [[completion(5)]], start=2)
    export(*words)
    assert not (folder / "r-failed.errors.jsonl").exists()
    assert held(folder) == [f"row {k}" for k in range(5 if goes_on else 6)]


def test_another_export_over_one_leaves_no_dead_letters_of_it(store, export, tmp_path):
    mixed(store)
    folder = tmp_path / "folder"
    export("r", "--to", "openai-batch", f"{folder}/")
    export("r", "--to", "messages", f"{folder}/", "--overwrite")
    assert not list(folder.glob("*.errors.jsonl"))


@pytest.mark.parametrize("letter", [{"k": 5, "verdict": "empty"}, {"k": 99}, ["junk"]])
def test_a_dead_letter_is_told_as_far_as_it_goes_or_named(store, export, tmp_path, letter):
    mixed(store)
    store.put(RunPaths("r").failed, codec.dumps(letter) + b"\n")
    error, told = export("r", "--to", "openai-batch", str(tmp_path / "out.jsonl"))
    if "verdict" in letter:
        assert told["errors"] == 2
    else:
        assert error.exit_code == 9
        assert "failed.jsonl:1 is no dead letter" in error.what


def test_a_second_export_into_a_place_is_refused_while_the_first_runs(store, export, tmp_path):
    mixed(store)
    partial = tmp_path / ".out.jsonl.partial"
    holder = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX);"
    holder += "print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, partial], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        error, _ = export("r", "--to", "messages", str(tmp_path / "out.jsonl"))
        assert error.exit_code == 7
        assert "Another export" in error.what
        other.stdin.close()
    assert export("r", "--to", "messages", str(tmp_path / "out.jsonl"))[1]["rows"] == 4


def test_a_full_disk_is_said_with_the_file_s_name_and_leaves_nothing(tmp_path):
    out = tmp_path / "out.jsonl"
    with pytest.raises(OSError) as told, WholeFile(out, "") as file:  # noqa: PT012
        file.write(b"a line\n")
        raise OSError(errno.ENOSPC, "No space left on device")  # as a write fails
    assert told.value.filename == str(out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("point", points_of("test_a_killed_export_leaves_no_half_file"))
@pytest.mark.parametrize("place", ["out.jsonl", "folder/"])
@pytest.mark.usefixtures("mixed_run")
def test_a_killed_export_leaves_no_half_file(export, tmp_path, point, place):
    out = f"{tmp_path}/{place}"
    words = ["gen-producer", "export", "r", "--to", "openai-batch", out]
    killed = forge.run(words, env={**os.environ, VARIABLE: point}, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    whole = [path for path in tmp_path.rglob("*.jsonl") if not path.name.startswith(".")]
    assert all(path.read_bytes().endswith(b"}\n") for path in whole)
    export(
        "r", "--to", "openai-batch", out, *(["--overwrite"] if whole and place != "folder/" else [])
    )
    everything = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in everything if path.name.endswith(".partial")]
    told = [
        line["custom_id"] for path in everything if "jsonl" in path.name for line in lines(path)
    ]
    assert sorted(told) == [f"row {k}" for k in range(6)]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["missing", "--to", "messages", "{here}/out.jsonl"], 2),
        (["r", "--to", "messages", "{here}/no/out.jsonl"], 2),
        (["r", "--to", "messages", "/proc/version/folder/"], 2),
        (["r", "--to", "messages", "s3://bucket/out.jsonl"], 2),
        (["r", "--to", "messages", "--compress", "gz", "{here}/out.jsonl"], 2),
        (["r", "--to", "messages", "{here}/out.parquet"], 2),
    ],
)
def test_mistakes_are_named_with_a_way_out(store, export, tmp_path, words, code):
    mixed(store)
    error, _ = export(*words[:-1], words[-1].format(here=tmp_path))
    assert error.exit_code == code
    assert error.fix
    assert not list(tmp_path.iterdir())


def test_a_run_with_a_part_gone_from_among_others_is_not_exported(store, export, tmp_path):
    store_committed(store, "r", [[completion(k)] for k in range(6)])
    gone = RunPaths("r").part(2, "parquet")
    store.delete(gone)
    for place in ("out.jsonl", "folder/", "-"):
        error, _ = export("r", "--to", "messages", place if place == "-" else f"{tmp_path}/{place}")
        assert error.exit_code == Exit.VERIFY
        assert f"{gone} is missing" in error.what
        assert "gen-producer load --run r" in error.fix
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["out.jsonl", "folder/", "-"])
def test_the_last_parts_of_a_finished_run_are_missed_and_counted(store, export, tmp_path, place):
    store_committed(store, "r", [[completion(0)], [completion(1), completion(2)]])
    store.delete(RunPaths("r").part(1, "parquet"))
    out = place if place == "-" else f"{tmp_path}/{place}"
    words = ["export", "r", "--to", "messages", "--json", out]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    told = json.loads((done.stderr if place == "-" else done.stdout).splitlines()[0])
    assert done.return_value == Exit.VERIFY
    assert (told["finished"], told["lost"], told["exported"]) == (False, {"r": 2}, 1)
    assert "not the whole run: 2 completions of r" in done.stderr
    assert "gen-producer load --run r" in done.stderr


def test_what_a_child_run_has_lost_is_told_or_refused_as_well(store, export, tmp_path):
    cut = {"verdict": "truncated", "finish_reason": "length"}
    parent = store_committed(store, "r", [[completion(k, **cut) for k in range(3)]])
    child = store_child(store, parent, "r-more", [0, 1, 2], [[completion(k)] for k in range(3)])
    paths, words = RunPaths(child.run), ("r", "--to", "messages", f"{tmp_path}/folder/")
    assert export(*words)[1]["lost"] == {}
    store.delete(paths.part(2, "parquet"))
    code, told = export(*words)
    assert (code, told["lost"], told["excluded"]) == (9, {"r-more": 1}, {"truncated": 1})
    add_parts(store, child.run, [[completion(2)]], start=2)
    store.delete(paths.part(0, "parquet"))
    error, _ = export(*words)
    assert f"{paths.part(0, 'parquet')} is missing" in error.what


def test_a_run_that_goes_on_lacks_nothing(store, export, tmp_path):
    store_committed(store, "r", [[completion(0)]], unfinished=2)
    code, told = export("r", "--to", "messages", str(tmp_path / "out.jsonl"))
    assert (code, told["finished"], told["lost"]) == (Exit.DONE, False, {})
    store.put(RunPaths("r").success, b"junk")
    error, _ = export("r", "--to", "messages", str(tmp_path / "other.jsonl"))
    assert "_SUCCESS is damaged" in error.what
