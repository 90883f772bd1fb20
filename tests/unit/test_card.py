"""What is said of a finished run, and how it is opened."""

from __future__ import annotations

from consumer.sink.card import closing_lines
from consumer.sink.summary import Summary


def summary(committed, dead):
    items = committed + dead
    return Summary("r", "parquet", items, items, 1, committed, dead, {}, {}, [], [], 1, 1)


def test_what_was_committed_is_opened_by_the_lines():
    text = "\n".join(closing_lines(summary(3, 1), "s3://b/r"))
    assert "r: 3 completions, 1 dead-lettered: s3://b/r/data/" in text
    assert "s3://b/r/data/*.parquet" in text


def test_where_nothing_was_committed_there_is_nothing_to_open():
    text = "\n".join(closing_lines(summary(0, 2), "s3://b/r"))
    assert "r: 0 completions, 2 dead-lettered: s3://b/r/failed.jsonl" in text
    assert "gen-producer failed r" in text
    assert "data/" not in text
