"""A report of a run that has lost parts, and one that goes where no plain file is."""

from __future__ import annotations

import json
import os
import stat
import threading

import pytest
from click.testing import CliRunner

from common.errors import Exit
from common.objectstore import RunPaths
from producer.cli import cli
from tests.support.committed import store_child, store_committed
from tests.support.completions import completion

SECONDS = 60


@pytest.fixture
def report(store_settings, monkeypatch, tmp_path):
    """Run the command without Redis; returns its exit code, or the error, and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GENQ_REDIS_URL", "redis://127.0.0.1:9/0")
    for name, value in store_settings.items():
        monkeypatch.setenv(f"GENQ_{name.upper()}", str(value))

    def run(*words):
        done = CliRunner().invoke(cli, ["report", *words], standalone_mode=False)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            return done.exception, ""
        return done.return_value, done.stdout

    return run


def test_a_part_gone_from_among_others_is_damage(store, report, tmp_path):
    parent = store_committed(store, "r", [[completion(k)] for k in range(4)])
    child = store_child(store, parent, "r-more", [0, 1], [[completion(0)], [completion(1)]])
    for run, number in ((child.run, 0), ("r", 1)):
        gone = RunPaths(run).part(number, "parquet")
        store.delete(gone)
        error, _ = report("r")
        assert error.exit_code == Exit.VERIFY
        assert f"{gone} is missing" in error.what
    assert not list(tmp_path.iterdir())


def test_the_last_parts_of_a_finished_run_are_missed_and_counted(store, report, tmp_path):
    store_committed(store, "r", [[completion(0)], [completion(1), completion(2)]])
    store.delete(RunPaths("r").part(1, "parquet"))
    code, said = report("r", "--json")
    found = json.loads(said)
    progress = found["progress"]
    assert (code, progress["state"], progress["lost"]) == (Exit.VERIFY, "damaged", 2)
    assert "2 completions of r that its _SUCCESS counts are in no part" in found["notes"][-1]
    code, said = report("r")
    assert code == Exit.VERIFY
    assert "damaged since, 33.3 % committed: 1 of 3 committed" in said
    assert "gen-producer load --run r" in said
    page = (tmp_path / "r-report.html").read_text(encoding="utf-8")
    assert "damaged since" in page
    assert "2 completions of r" in page


def test_what_a_child_run_has_lost_is_told(store, report):
    parent = store_committed(store, "r", [[completion(0), completion(1)]])
    store_child(store, parent, "r-more", [0, 1], [[completion(0)], [completion(1)]])
    assert report("r", "--json")[0] == Exit.DONE
    store.delete(RunPaths("r-more").part(1, "parquet"))
    code, said = report("r", "--json")
    found = json.loads(said)
    assert (code, found["progress"]["lost"], found["children"][0]["lost"]) == (Exit.VERIFY, 0, 1)
    assert "1 completions of r-more" in found["notes"][-1]


def test_a_pipe_is_written_into_and_stays_one(store, report, tmp_path):
    store_committed(store, "r", [[completion(0)]])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(
        target=lambda: read.append(pipe.read_text(encoding="utf-8")), daemon=True
    )
    reader.start()
    code, _ = report("r", "--out", str(pipe))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join(SECONDS)
    assert code == Exit.DONE
    assert read[0].rstrip().endswith("</html>")


def test_a_link_stays_and_what_it_names_is_written(store, report, tmp_path):
    store_committed(store, "r", [[completion(0)]])
    target, link = tmp_path / "there" / "page.html", tmp_path / "link.html"
    target.parent.mkdir()
    link.symlink_to("there/page.html")
    for text in ("", "old"):  # it names nothing yet, then an earlier page
        if text:
            target.write_text(text, encoding="utf-8")
        report("r", "--out", str(link))
        assert link.is_symlink()
        assert target.read_text(encoding="utf-8").rstrip().endswith("</html>")
        assert [path.name for path in target.parent.iterdir()] == ["page.html"]
