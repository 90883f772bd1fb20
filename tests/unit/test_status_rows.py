"""The rows of a status screen: one for each worker, with what is wrong with its card."""

from dataclasses import replace

import pytest

from producer.status.rows import duration, worker_lines
from tests.support.statuses import PLACE, worker


def test_rows_that_there_is_no_room_for_are_counted_and_the_marked_ones_stay():
    many = [worker(n, **PLACE, gpu=str(n), tokens_per_second=f"{3000 + n}") for n in range(40)]
    many[25] = worker(25, **PLACE, gpu="25", gpu_up="0")
    lines = worker_lines(many, most=6)
    assert len(lines) == 6
    assert "gpu 25" in lines[4]
    assert "GPU LOST" in lines[4]
    assert lines[5] == "  ... and 35 more, 3,004 to 3,039 tok/s each"
    assert len(worker_lines(many)) == 40
    assert len(worker_lines(many, most=-5)) == 3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (90_061, "1 d 1 h")],
)
def test_times(seconds, text):
    assert duration(seconds) == text


def test_a_silent_worker_is_told_with_how_long_and_an_idle_one_is_not_slow():
    silent = replace(worker(0), gauges={}, ours=True, last_heartbeat="2026-01-31T23:59:59.000000Z")
    at = 1769903999.0 + 95
    assert worker_lines([silent], at=at)[0].endswith("  <- no word for 1 min 35 s")
    assert worker_lines([silent])[0].endswith("  <- no word since 2026-01-31T23:59:59Z")
    assert worker_lines([replace(silent, last_heartbeat="")])[0].endswith("  <- no word ever")
    idle = worker(1, in_flight="0", tokens_per_second="10")
    assert not any("slow" in line for line in worker_lines([worker(0), worker(2), idle]))


def line_of(**gauges):
    (line,) = worker_lines([worker(0, **gauges)])
    return line


def test_a_worker_shows_what_was_asked_where_less_came_of_it():
    hybrid = {"max_running": "40", "window": "44", "state_slots": "200", "slots_per_request": "5"}
    asked = line_of(asked_running="64", **hybrid)
    assert "48/44 in flight" in asked  # the window, which may shrink while more is under way
    assert asked.endswith("  (runs 40 of 64 asked: 200 state slots, 5 each)")
    assert "(runs 40 of 64 asked)" in line_of(asked_running="64", max_running="40")
    for same in ("40", "20", ""):
        assert "asked" not in line_of(asked_running=same, **hybrid)
    assert "asked" not in line_of(asked_running="64", max_running="0")  # not ready yet
    assert "  0 in flight" in line_of(in_flight="0", window="0")


def test_a_worker_shows_its_card():
    busy = {"gpu_up": "1", "gpu_utilization": "0.974", "gpu_power_watts": "688.4"}
    more = {"gpu_temperature_celsius": "64", "accept_length": "2.84", "token_usage": "0.5"}
    (line,) = worker_lines([worker(0, **busy, **more)], width=200)
    assert line.endswith("  KV 50 %  97 % busy  688 W  64 C  drafts 2.8  finished 71,000")
    assert "97 % busy" in line_of(**busy)
    assert "slowed" not in line_of(**busy, gpu_throttled="power_cap")
    slowed = line_of(**busy, gpu_throttled="hw_thermal,power_cap", gpu_failing="rows_lost")
    assert slowed.endswith("  GPU slowed: hw_thermal  GPU failing: rows_lost")
    assert line_of(gpu_up="0").endswith("  GPU LOST: the driver cannot read it")
    empty = dict.fromkeys((*busy, "gpu_temperature_celsius", "gpu_failing"), "")
    assert line_of(**empty) == line_of()
