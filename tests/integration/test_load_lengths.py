"""Rows that leave no room for an answer: refused by `load` before anything is stored or spent."""

from __future__ import annotations

import json

import pytest

from common.errors import Exit
from tests.support.tiny_tokenizer import build_model_folder

pytestmark = pytest.mark.row("F5")
LIMIT = 4096
MARKS = 19  # of one user's message; a byte is a token
ROWS = [
    {"prompt": "short"},
    {"prompt": "x" * (LIMIT - MARKS - 1)},  # room for one token
    {"prompt": "x" * (LIMIT - MARKS)},
    {"turns": ["a", "x" * LIMIT]},
    {"prompt": "é" * 1500},  # 3,000 bytes
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model_folder(tmp_path_factory.mktemp("model") / "tiny", context=LIMIT)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_a_row_that_is_too_long_is_refused_with_both_numbers(producer, rows, model, store):
    said = producer("load", rows, "--model", model, "--run", "r", code=Exit.INPUT).err
    assert (
        f"rows.jsonl:3: the prompt has {LIMIT:,} tokens, and prompt and answer together may have"
        f" {LIMIT:,} (the model itself)."
    ) in said
    assert not list(store.list("r/"))


def test_skipped_they_are_counted_by_class_and_the_others_are_loaded(producer, rows, model):
    words = ("load", rows, "--model", model, "--run", "r", "--on-error", "skip", "--json")
    found = json.loads(producer(*words).out)
    assert (found["rows"], found["skipped"]) == (3, 2)
    assert found["skipped_by_class"] == {"too_long": 2}
    assert [fault["line"] for fault in found["faults"]] == [3, 4]
    again = json.loads(producer(*words).out)
    assert (again["outcome"], again["new"]) == ("already", 0)


def test_the_flag_counts_and_not_the_model(producer, rows, model):
    words = ("load", rows, "--model", model, "--run", "r", "--dry-run", "--on-error", "skip")
    found = json.loads(producer(*words, "--context", 2000, "--json").out)
    assert found["skipped_by_class"] == {"too_long": 4}
    assert "(--context 2000)" in found["faults"][0]["reason"]


def test_what_cannot_be_checked_here_is_left_to_the_consumer_and_said(producer, rows):
    words = ("load", rows, "--model", "m", "--run", "r", "--dry-run")
    assert "is not known here (m is not on this machine" in producer(*words).err
    said = producer(*words, "--context", LIMIT).err
    assert "rows may be too long; their check is left to the consumer" in said
