"""Tokens over time: none is lost, however bins are joined, and busy time is the union."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producer.report import timeline
from producer.report.survey import place_of
from producer.report.timeline import MAX_BINS, MAX_WORKERS, OTHERS, Busy, Timeline

TIMES = st.floats(0, 50_000, allow_nan=False, width=32)
# Shorter than a millisecond but not nothing is no answer's time, and the end of so short a spell on
# a clock of hours is rounded to a sensible part of it.
SECONDS = st.just(0.0) | st.floats(2**-10, 9000, width=32)
WORK = st.lists(
    st.tuples(st.sampled_from("ab"), TIMES, SECONDS, st.integers(0, 9000)),
    min_size=1,
    max_size=40,
)


@given(work=WORK)
@settings(max_examples=60)
def test_all_tokens_are_in_the_series_where_they_were_made(work):
    line = Timeline()
    for name, start, seconds, tokens in work:
        line.add(name, start, seconds, tokens)
    width, series = line.series(100)
    for name in series:
        assert len(series[name]) <= 100
        mine = [one for one in work if one[0] == name]
        assert sum(series[name]) * width == pytest.approx(sum(one[3] for one in mine), abs=0.01)
        for at, rate in enumerate(series[name]):
            begin = line.start + at * width
            expected = sum(spread(one, begin, begin + width) for one in mine)
            assert rate * width == pytest.approx(expected, abs=0.01)


def spread(one, begin, end):
    _, start, seconds, tokens = one
    if seconds <= 1e-9:
        return tokens if begin <= start < end else 0
    return tokens * max(0.0, min(end, start + seconds) - max(begin, start)) / seconds


@given(spells=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 30)), min_size=1))
@settings(max_examples=60)
def test_busy_time_is_the_union(spells):
    busy = Busy()
    for start, seconds in spells:
        busy.add(start, start + seconds)
    union = {at for start, seconds in spells for at in range(start, start + seconds)}
    assert busy.seconds == len(union)
    assert busy.span == (min(s for s, _ in spells), max(s + n for s, n in spells))


def test_memory_is_bounded_whatever_comes(monkeypatch):
    monkeypatch.setattr(timeline, "MAX_SPELLS", 8)
    line = Timeline()
    for n in range(2000):
        line.add(f"w{n % (2 * MAX_WORKERS)}", n * 1000.0, 10.0, 7)
    assert len(line.workers) == MAX_WORKERS + 1
    assert len(line.joined) == MAX_WORKERS
    assert line.workers[OTHERS].tokens == 7 * line.workers[OTHERS].completions
    for worker in line.workers.values():
        assert len(worker.values()) <= MAX_BINS
        assert len(worker.busy._starts) <= 8
    width, series = line.series(100)
    assert sum(map(sum, series.values())) * width == pytest.approx(14_000)


def test_a_gpu_is_one_worker_however_often_its_consumer_was_started():
    assert place_of("node-7-gpu3-4711-ab12") == place_of("node-7-gpu3-99-ffff") == "node-7-gpu3"
    assert place_of("laptop-cpu-4711-ab12") == "laptop-cpu-4711-ab12"
    assert place_of("somebody") == "somebody"
