"""Rates come from counter differences, and a restarted engine counts from zero."""

from __future__ import annotations

from consumer.gauges import Rates


def test_the_rate_is_a_difference_over_the_window() -> None:
    rates = Rates()
    assert rates.tokens_per_second == 0.0
    for second in range(100):
        rates.sample(float(second), second * 50)
    assert rates.tokens_per_second == 50.0


def test_an_engine_that_says_nothing_more_has_no_rate() -> None:
    rates = Rates()
    for second in range(20):
        rates.sample(float(second), second * 50)
    rates.nothing(33.0)
    assert rates.tokens_per_second == 50.0
    rates.nothing(34.5)
    assert rates.tokens_per_second == 0.0


def test_a_counter_that_fell_begins_anew() -> None:
    rates = Rates()
    rates.sample(0.0, 1_000_000)
    rates.sample(1.0, 10)
    assert rates.tokens_per_second == 0.0
    rates.sample(2.0, 30)
    assert rates.tokens_per_second == 20.0
