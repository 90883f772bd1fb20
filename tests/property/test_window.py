"""The window keeps its bounds whatever the engine says, and gives way when it must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.engine.api import EngineLoad
from consumer.generation.window import Window

loads = st.builds(
    EngineLoad,
    running=st.integers(0, 5000),
    waiting=st.integers(0, 5000),
    token_usage=st.floats(0, 1.2),
    generated_tokens=st.integers(0),
    retractions=st.integers(0, 100),
)
events = st.lists(st.tuples(st.one_of(st.none(), loads), st.integers(0, 6000)), max_size=60)


@given(max_running=st.integers(-3, 5000), events=events)
def test_the_size_stays_between_one_and_the_ceiling(max_running, events) -> None:
    window = Window(max_running)
    for load, in_flight in events:
        size = window.pushed_back() if load is None else window.observe(load, in_flight=in_flight)
        assert size == window.size
        assert 1 <= size <= window.ceiling
        assert window.ceiling <= max(2, window.max_running * 1.3 + 1)


@given(max_running=st.integers(1, 5000), events=events)
def test_it_never_grows_on_trouble_or_for_nothing(max_running, events) -> None:
    window = Window(max_running)
    retractions = 0
    for n, (load, in_flight) in enumerate(events):
        before = window.size
        if load is None:
            assert window.pushed_back() <= before
            continue
        trouble = (n > 0 and load.retractions > retractions) or in_flight < before * 0.9
        retractions = load.retractions
        if window.observe(load, in_flight=in_flight) > before:
            assert not trouble
            assert load.token_usage < 0.95


def calm(window: Window, **changes) -> EngineLoad:
    fields = {"running": window.size, "waiting": 0, "token_usage": 0.5}
    return EngineLoad(**{**fields, "generated_tokens": 0, "retractions": 0, **changes})


@given(max_running=st.integers(1, 5000))
def test_a_willing_engine_is_filled_in_a_dozen_samples(max_running) -> None:
    window = Window(max_running)
    for _ in range(12):
        window.observe(calm(window), in_flight=window.size)
    assert window.size == window.ceiling
    assert window.size > max_running


@given(max_running=st.integers(1, 5000))
def test_a_large_engine_is_filled_in_as_few_samples_as_a_small_one(max_running) -> None:
    window = Window(max_running)
    for _ in range(5):
        window.observe(calm(window, token_usage=0.02), in_flight=window.size)
    assert window.size == window.ceiling


@given(max_running=st.integers(2, 5000), share=st.floats(0.0005, 0.9))
def test_it_never_grows_past_what_the_token_pool_would_hold(max_running, share) -> None:
    """Each request takes the same share of the pool: the pool is never planned to be full."""
    each = share / max_running if share > 0.1 else share
    window = Window(max_running)
    for _ in range(60):
        before, usage = window.size, min(1.0, window.size * each)
        size = window.observe(calm(window, token_usage=usage), in_flight=window.size)
        if size > before + 1:
            assert size * each <= 0.93


@given(max_running=st.integers(16, 5000))
def test_it_recovers_after_a_retraction(max_running) -> None:
    window = Window(max_running, size=0)
    for _ in range(12):
        window.observe(calm(window), in_flight=window.size)
    window.observe(calm(window, retractions=3), in_flight=window.size)
    low = window.size
    assert low < window.ceiling
    for _ in range(400):
        window.observe(calm(window, retractions=3), in_flight=window.size)
    assert window.size == window.ceiling


def test_a_burst_of_refusals_counts_once() -> None:
    window = Window(100)
    for _ in range(12):
        window.observe(calm(window), in_flight=window.size)
    first = window.pushed_back()
    assert [window.pushed_back() for _ in range(50)] == [first] * 50


def test_new_requests_that_wait_for_their_prefill_are_no_reason_to_give_way() -> None:
    window = Window(256)
    for _ in range(5):
        window.observe(calm(window), in_flight=window.size)
    full = window.size
    for running in (20, 60, 130, 200):
        load = calm(window, running=running, waiting=full - running)
        assert window.observe(load, in_flight=full) >= full


def test_a_queue_in_the_engine_that_does_not_move_shrinks_the_window() -> None:
    window = Window(256)
    for _ in range(8):
        window.observe(calm(window), in_flight=window.size)
    for _ in range(60):
        waiting = max(0, window.size - 60)
        window.observe(calm(window, running=60, waiting=waiting), in_flight=window.size)
    assert 60 < window.size < 60 + 0.5 * 256


def cut_by(trouble: str, samples: int) -> tuple[int, list[int]]:
    """An engine whose answers take longer than so many samples: nothing leaves in that time."""
    window = Window(128 if trouble == "stuck" else 256, most=320)
    for _ in range(30):
        window.observe(calm(window), in_flight=window.size)
    full = in_flight = window.size
    sizes = []
    for n in range(1, samples + 1):
        load = {
            "stuck": calm(window, running=1, waiting=in_flight - 1),
            "retracting": calm(window, retractions=n),
            "tight": calm(window, waiting=9, token_usage=0.99),
            "refusing": calm(window),
        }[trouble]
        if trouble == "refusing":
            window.pushed_back()
        sizes.append(window.observe(load, in_flight=in_flight))
    return full, sizes


@pytest.mark.parametrize("trouble", ["stuck", "retracting", "tight", "refusing"])
def test_what_the_last_cut_has_not_brought_yet_is_not_cut_again(trouble):
    full, sizes = cut_by(trouble, 60)
    assert len(set(sizes[-50:])) == 1, "one cut, until what was let in before has left"
    assert sizes[-1] < full
    assert sizes[-1] > 0.3 * full


def test_an_engine_that_goes_on_refusing_is_cut_every_few_seconds():
    window = Window(100)
    for _ in range(12):
        window.observe(calm(window), in_flight=window.size)
    sizes = []
    for _ in range(12):
        window.pushed_back()  # what it refuses is back at once: no more than the size in flight
        sizes.append(window.observe(calm(window), in_flight=window.size))
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3, "every five samples"


@given(max_running=st.integers(1, 5000), most=st.integers(1, 5000), events=events)
def test_what_was_measured_to_be_most_is_the_ceiling(max_running, most, events) -> None:
    window = Window(max_running, most=most)
    assert window.ceiling == most
    for load, in_flight in events:
        size = window.pushed_back() if load is None else window.observe(load, in_flight=in_flight)
        assert 1 <= size <= most


def test_a_measured_queue_in_the_engine_is_no_reason_to_give_way() -> None:
    window = Window(40, most=96)
    for _ in range(30):
        waiting = max(0, window.size - 40)
        load = EngineLoad(min(40, window.size), waiting, 0.1, 0, 0)
        window.observe(load, in_flight=window.size)
    assert window.size == 96
