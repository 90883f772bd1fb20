"""The rates of the benchmark on a GPU, from samples of an engine's counter."""

from __future__ import annotations

from argparse import Namespace

import orjson
import pytest

from tests.bench import bench_gpu
from tests.bench.gpu.counter import steady_rate
from tests.bench.gpu.prompts import write_prompts
from tests.bench.gpu.town import Consumer, Town


def samples(rates, since=0.0, tokens=0.0):
    moves = [(since, tokens)]
    for rate in rates:
        since, tokens = since + 1.0, tokens + rate
        moves.append((since, tokens))
    return moves


def test_ramp_and_drain_are_left_out_of_the_steady_rate():
    moves = samples([0, 0, 10, 50, *[100] * 20, 50, 10, 0, 0])
    assert steady_rate([moves]) == pytest.approx(100)


def test_of_two_engines_only_the_time_counts_in_which_both_are_steady():
    one = samples([100] * 20)
    late = samples([0] * 5 + [100] * 20)
    assert steady_rate([one, late]) == pytest.approx(200)


def test_both_sides_are_asked_the_same(tmp_path):
    ours, theirs = write_prompts(tmp_path, rows=20, words=7, seed=3, render="<{}>".format)
    rows = [orjson.loads(line) for line in ours.read_bytes().splitlines()]
    talks = [orjson.loads(line) for line in theirs.read_bytes().splitlines()]
    asked = [talk["conversations"][0]["content"] for talk in talks]
    assert [f"<{row['prompt']}>" for row in rows] == asked
    assert len(set(asked)) == 20


def test_two_cards_and_one_are_measured_warm_and_in_turn(monkeypatch, tmp_path):
    """A first load meets a small window and kernels that are not compiled yet."""
    seen = []
    options = Namespace(gpus=[0, 1], out=tmp_path, rounds=2, warm=True)
    bench = bench_gpu.Bench(options, None)
    rates = {1: iter((90.0, 110.0)), 2: iter((1.0, 190.0, 1.0, 210.0))}

    def staffed(number):
        bench.consumers[:] = options.gpus[:number]

    def loaded(bench, _rows):
        seen.append(len(bench.consumers))
        return next(rates[len(bench.consumers)])

    monkeypatch.setattr(bench, "staffed", staffed)
    monkeypatch.setattr(bench, "dismiss", bench.consumers.pop)
    monkeypatch.setattr(bench_gpu, "_loaded", loaded)
    bench_gpu.cards(bench, tmp_path, tmp_path)
    assert seen == [2, 2, 1] * 2
    assert bench.figures["cards_1_one_tokens_per_second"] == 110.0
    assert bench.figures["cards_ratio"] == 2.0


def test_a_consumer_that_takes_over_a_card_is_not_ready_by_the_words_of_the_one_before(tmp_path):
    (tmp_path / "consumer-0.log").write_text('{"event": "engine.state", "state": "ready"}\n')
    place = Town(tmp_path, {}, tmp_path / "transcript.txt")
    one = Consumer(place, tmp_path, 0, ["--no-such-flag"])
    one.process.kill()
    one.process.wait()
    assert one.events("engine.state") == []
