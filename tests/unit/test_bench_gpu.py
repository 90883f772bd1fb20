"""The rates of the benchmark on a GPU, from samples of an engine's counter."""

from __future__ import annotations

import orjson
import pytest

from tests.bench.gpu.counter import steady_rate, whole_rate
from tests.bench.gpu.prompts import write_prompts


def samples(rates, since=0.0, tokens=0.0):
    moves = [(since, tokens)]
    for rate in rates:
        since, tokens = since + 1.0, tokens + rate
        moves.append((since, tokens))
    return moves


def test_ramp_and_drain_are_left_out_of_the_steady_rate():
    moves = samples([0, 0, 10, 50, *[100] * 20, 50, 10, 0, 0])
    assert steady_rate([moves]) == pytest.approx(100)
    assert whole_rate(moves) == pytest.approx(2120 / 24)


def test_of_two_engines_only_the_time_counts_in_which_both_are_steady():
    one = samples([100] * 20)
    late = samples([0] * 5 + [100] * 20)
    assert steady_rate([one, late]) == pytest.approx(200)


def test_both_sides_are_asked_the_same(tmp_path):
    ours, theirs = write_prompts(tmp_path, rows=20, words=7, seed=3)
    rows = [orjson.loads(line) for line in ours.read_bytes().splitlines()]
    talks = [orjson.loads(line) for line in theirs.read_bytes().splitlines()]
    asked = [talk["conversations"][0]["content"] for talk in talks]
    assert [row["prompt"] for row in rows] == asked
    assert len(set(asked)) == 20
