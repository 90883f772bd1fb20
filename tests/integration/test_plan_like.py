"""A plan by the lengths that a finished run left, read from object storage; nothing is written."""

from __future__ import annotations

import json

import pytest

from common import codec
from common.ids import RunName
from common.objectstore import RunPaths
from consumer.sink.summary import Summary

OLD = RunName("old")


@pytest.fixture
def old(store):
    """As much of a manifest as is read of it, counted by what a sink counts with."""
    summary = Summary(
        run=OLD,
        suffix="parquet",
        rows=4,
        samples=1,
        items=4,
        committed=4,
        dead=0,
        verdicts={"ok": 4},
        failures={},
        engines=["sglang"],
        models=["big"],
        prompt_tokens=40,
        completion_tokens=3000,
    )
    store.put(RunPaths(OLD).manifest, codec.dumps({"version": 1, "counts": summary}))


def test_answers_are_expected_as_long_as_a_finished_run_s(producer, store, old, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt":"a"}\n{"turns":["b","c"]}\n')
    before = [found.key for found in store.list("")]
    words = ("plan", tmp_path / "rows.jsonl", "--like", OLD, "--tokens-per-second", 0.625)
    found = json.loads(producer(*words, "--json").out)
    assert found["output"] == {
        "completions": 2,
        "answers": 3,
        "mean_tokens": 750.0,
        "tokens": 2250,
        "basis": "measured",
        "origin": "mean of run old, 4 completions",
    }
    assert found["cost"]["gpu_hours"] == 1.0
    said = producer(*words, "--model", "small")
    assert "Note: run old was answered by big." in said.err
    assert [found.key for found in store.list("")] == before
    missing = producer("plan", tmp_path / "rows.jsonl", "--like", "new", code=2).err
    assert "There is no run new in s3://" in missing
    assert "--expect-tokens N" in missing
    store.put("new/run.json", b"{}")
    begun = producer("plan", tmp_path / "rows.jsonl", "--like", "new", code=3).err
    assert "Run new is not finished" in begun
    assert "--expect-tokens N" in begun


def test_objects_are_planned_where_they_lie(producer, store):
    store.put("in/a.jsonl", b'{"prompt":"a"}\n' * 3)
    found = json.loads(producer("plan", f"{store.url}/in/", "--json").out)
    assert found["rows"]["usable"] == 3
    assert found["shapes"]["prompt"]["first"] == {"file": f"{store.url}/in/a.jsonl", "line": 1}
