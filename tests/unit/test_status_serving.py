"""Whose turn it is: which consumers are free for a run, and which record of a place counts."""

from dataclasses import replace

import pytest

from common.settings import load_settings
from producer.fleet import Fleet, Looks, readings
from producer.status.serving import earlier, may_wait, present, run_ahead
from tests.support.statuses import COUNTS, INFO, worker

SETTINGS = load_settings()
FIRST = replace(INFO, run="first", priority=10)
MINE = replace(COUNTS, leased=0, queued=400_336, since_result=600.0, since_lease=600.0)
BOTH = (FIRST.run, INFO.run)


def shared(number, queues=BOTH, **gauges):
    return replace(worker(number, **gauges), queues=queues)


def ahead(workers, counts=COUNTS, info=FIRST):
    pairs = [(one, counts) for one in earlier(INFO, [info, INFO])]
    return run_ahead(INFO, workers, pairs, SETTINGS.limits())


@pytest.mark.parametrize(
    ("workers", "counts", "info", "found"),
    [
        ([shared(0)], COUNTS, FIRST, "first"),
        ([shared(0), shared(1)], COUNTS, replace(FIRST, state="loading"), "first"),
        ([shared(0), shared(1, engine="fatal")], COUNTS, FIRST, "first"),
        ([shared(0), shared(1, queues=(INFO.run,))], COUNTS, FIRST, None),  # one is free
        ([shared(0, queues=(INFO.run,))], COUNTS, FIRST, None),
        ([shared(0, refused="first")], COUNTS, FIRST, None),
        ([shared(0, engine="starting")], COUNTS, FIRST, None),
        ([replace(shared(0), gauges={}, ours=True)], COUNTS, FIRST, None),
        ([shared(0)], replace(COUNTS, queued=0), FIRST, None),  # its last ones leave places free
        ([shared(0)], replace(COUNTS, generated=20_000), FIRST, None),  # its stream is full
        ([shared(0)], replace(COUNTS, stream_bytes=2**29), FIRST, None),
        ([shared(0)], COUNTS, replace(FIRST, state="held"), None),
        ([shared(0)], COUNTS, replace(FIRST, model="another"), None),
    ],
)
def test_a_run_waits_its_turn_only_behind_one_that_takes_all_its_consumers(
    workers, counts, info, found
):
    assert ahead(workers, counts, info) == found


def test_fingerprints_that_differ_are_of_two_engines():
    one, other = (replace(INFO, run=name, model_fingerprint=name) for name in "ab")
    assert earlier(other, [one, other]) == []
    assert earlier(INFO, [one, INFO]) == [one]
    assert earlier(one, [one, other]) == [], "the others come behind it"


def test_two_runs_may_take_the_consumers_of_a_third_together():
    second = replace(INFO, run="second")
    workers = [shared(0), shared(1, queues=("second", INFO.run))]
    pairs = [(FIRST, COUNTS), (second, COUNTS)]
    assert run_ahead(INFO, workers, pairs, SETTINGS.limits()) == "first"


def test_only_a_run_of_which_nothing_is_handed_out_may_wait():
    assert may_wait(INFO, MINE)
    assert not may_wait(INFO, COUNTS)
    assert not may_wait(INFO, replace(MINE, queued=0, waiting=0))
    assert not may_wait(replace(INFO, state="paused"), MINE)


def status_of(fleet, run=INFO.run):
    shown = readings(fleet, Looks(up=True), SETTINGS)
    return {
        sample.labels["status"]
        for family in shown.collect()
        for sample in family.samples
        if sample.name == "genq_run_status" and sample.labels["run"] == run and sample.value
    }


def test_the_exporter_calls_a_run_that_waits_its_turn_waiting_and_not_stalled():
    runs = [(FIRST, replace(COUNTS, run="first")), (INFO, MINE)]
    assert status_of(Fleet(runs, workers=[shared(0)])) == {"waiting"}
    assert status_of(Fleet(runs, workers=[shared(0)]), "first") == {"generating"}
    assert status_of(Fleet(runs[::-1], workers=[shared(0)])) == {"stalled"}, (
        "it goes first, and stands"
    )


def test_a_record_that_was_left_counts_until_a_newer_consumer_has_its_place():
    place = {"host": "n1", "gpu": "3"}
    left = replace(worker(0, **place, engine="fatal"), birth="2026-01-31T10:00:00.000000Z")
    older = replace(worker(1, **place), birth="2026-01-31T09:00:00.000000Z")
    newer = replace(worker(2, **place, engine="starting"), birth="2026-01-31T10:00:01.000000Z")
    beside = replace(worker(3, host="n1", gpu="4"), birth="2026-01-31T11:00:00.000000Z")
    assert present([left, beside]) == [left, beside]
    assert present([older, left]) == [older, left]
    assert present([left, newer, beside]) == [newer, beside]
    silent = replace(newer, gauges={}, ours=True)
    assert present([left, silent]) == [left, silent]
