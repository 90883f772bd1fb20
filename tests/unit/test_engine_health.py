from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.engine.api import EngineLoad
from consumer.engine.health import Liveness, Sample


def load(work: int, running: int = 1) -> EngineLoad:
    return EngineLoad(
        running=running, waiting=0, token_usage=0, generated_tokens=0, retractions=0, work=work
    )


def feed(liveness: Liveness, *samples: Sample) -> str:
    verdict = ""
    for sample in samples:
        verdict = verdict or liveness.stuck(sample)
    return verdict


def test_no_work_for_the_stall_time_with_requests_in_flight_is_stuck():
    samples = [Sample(float(t), 3, 0, load(work=50)) for t in range(0, 101, 10)]
    assert feed(Liveness(100), *samples[:-1]) == ""
    assert "no token and no answer for 100 s with 3 requests" in feed(Liveness(100), *samples)


@pytest.mark.row("B3")
def test_growing_counters_keep_it_alive_for_ever():
    samples = [Sample(float(t), 3, 0, load(work=t)) for t in range(0, 10_000, 10)]
    assert feed(Liveness(30), *samples) == ""


def test_a_server_that_somebody_started_anew_counts_from_zero_and_works():
    first = [Sample(float(t), 3, 0, load(work=10**6 + t)) for t in range(100)]
    again = [Sample(100.0 + t, 3, 0, load(work=t)) for t in range(400)]
    assert feed(Liveness(100), *first, *again) == ""


def test_a_reading_without_all_counters_is_no_sign_of_work_and_hides_none():
    lost = replace(load(work=50), whole=False)  # without metrics the counter is a lower one
    flapping = [
        Sample(float(t), 3, 0, lost if t % 20 else load(work=90)) for t in range(0, 101, 10)
    ]
    assert "no token and no answer" in feed(Liveness(100), *flapping)
    moving = [Sample(float(t), 3, 0, lost if t % 20 else load(work=t)) for t in range(0, 9000, 10)]
    assert feed(Liveness(100), *moving) == ""


def test_answers_alone_keep_it_alive_where_counters_are_missing():
    samples = [Sample(float(t), 3, t, None) for t in range(0, 10_000, 10)]
    assert feed(Liveness(30), *samples) == ""


def test_an_idle_engine_that_answers_is_never_stuck():
    samples = [Sample(float(t), 0, 0, load(work=7, running=0)) for t in range(0, 10_000, 10)]
    assert feed(Liveness(30), *samples) == ""


def test_an_idle_engine_that_says_nothing_is_stuck_after_the_silent_time():
    samples = [Sample(float(t), 0, 0, None) for t in range(0, 61, 10)]
    assert feed(Liveness(300, silent_seconds=60), *samples[:-1]) == ""
    assert "no sign of life" in feed(Liveness(300, silent_seconds=60), *samples)


def test_a_busy_engine_may_be_silent_up_to_the_stall_time():
    samples = [Sample(float(t), 2, 0, None) for t in range(0, 291, 10)]
    assert feed(Liveness(300, silent_seconds=60), *samples) == ""


@pytest.mark.row("B9")
def test_an_engine_that_calls_itself_idle_while_we_wait_is_stuck_sooner():
    samples = [Sample(float(t), 2, 0, load(work=5, running=0)) for t in range(0, 31, 5)]
    assert "says that it is idle" in feed(Liveness(300, lost_seconds=30), *samples)


def test_the_clock_starts_when_the_first_request_goes_out():
    idle = [Sample(float(t), 0, 0, load(5, running=0)) for t in range(0, 1000, 10)]
    busy = [Sample(1000.0 + t, 1, 0, load(5)) for t in range(0, 90, 10)]
    assert feed(Liveness(100), *idle, *busy) == ""


@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 20), st.integers(0, 4), st.booleans(), st.booleans(), st.booleans()
        ),
        max_size=60,
    )
)
def test_whatever_comes_a_stuck_verdict_needs_that_much_time_without_a_sign(steps):
    liveness, now, work, answered, quiet = Liveness(50.0), 0.0, 0, 0, 0.0
    for pause, in_flight, speaks, works, answers in steps:
        now += pause
        work += works
        answered += answers
        verdict = liveness.stuck(Sample(now, in_flight, answered, load(work) if speaks else None))
        quiet = 0.0 if (answers or (works and speaks) or not in_flight) else quiet + pause
        if verdict and "no token" in verdict:
            assert quiet >= 49.9 - 1e-6
