"""The example prompts: every row shape is there, and every row is accepted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from producer.sources.chat import FORMATS, canonical_row, shape_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "prompts.jsonl"
RAW = [json.loads(line) for line in EXAMPLES.read_text(encoding="utf-8").splitlines()]
ROWS = [canonical_row(number, raw) for number, raw in enumerate(RAW)]


def test_every_row_shape_is_there_often():
    shapes = Counter(shape_of(raw) for raw in RAW)
    assert set(shapes) == set(FORMATS)
    assert min(shapes.values()) >= 5
    assert len(RAW) == 100


def test_rows_differ_from_one_another():
    assert len({json.dumps(row.messages) for row in ROWS}) == len(ROWS)


def test_special_rows_are_there():
    last_turns = [row.messages[-1]["content"] for row in ROWS]
    assert sum("\n\n" in text for text in last_turns) == 2
    assert any("ä" in text for text in last_turns)
    users = [
        sum(m["role"] == "user" for m in row.messages) for row in ROWS if "turns" in RAW[row.i]
    ]
    assert users.count(2) == 2
    assert any(row.id is None for row in ROWS)
    assert any(row.sampling.max_tokens for row in ROWS)
    assert any(row.sampling.temperature is not None for row in ROWS)
