"""The black hole rule: an engine that fails everything at once is not fed."""

from __future__ import annotations

from consumer.generation.health import ENOUGH, EngineTrust


def test_an_engine_that_fails_everything_is_condemned_after_few_tries() -> None:
    trust = EngineTrust()
    for _ in range(ENOUGH - 1):
        trust.fault(0.0)
    assert not trust.condemned
    trust.fault(0.0)
    assert trust.condemned


def test_faults_among_many_good_answers_condemn_nobody() -> None:
    trust = EngineTrust()
    for n in range(300):
        if n % 3 == 0:
            trust.fault(float(n))
        else:
            trust.good()
    assert not trust.condemned


def test_faults_that_nobody_is_blamed_for_only_make_leasing_pause() -> None:
    trust = EngineTrust()
    for n in range(100):
        trust.fault(n * 100.0, blamed=False)
    assert not trust.condemned
    assert trust.pause_seconds(99 * 100.0) > 10


def test_pauses_grow_in_a_row_and_those_that_fail_together_count_once() -> None:
    trust = EngineTrust()
    for _ in range(50):
        trust.fault(0.0, blamed=False)
    first = trust.pause_seconds(0.0)
    assert 0 < first < 0.2
    trust.fault(1.0, blamed=False)
    assert trust.pause_seconds(1.0) > first
    trust.good()
    trust.fault(100.0, blamed=False)
    assert trust.pause_seconds(100.0) == trust.pause_seconds(100.0) <= first + 1e-9


def test_a_spinning_engine_gets_few_items_in_a_minute() -> None:
    """Each round leases a full small window; the pauses bound the rounds."""
    trust, now, rounds = EngineTrust(), 0.0, 0
    while now < 60.0:
        rounds += 1
        for _ in range(8):
            trust.fault(now, blamed=False)
        now += max(0.005, trust.pause_seconds(now))
    assert rounds <= 12


def test_the_next_engine_starts_with_a_clean_sheet() -> None:
    trust = EngineTrust()
    for _ in range(ENOUGH):
        trust.fault(0.0)
    trust.fresh()
    assert not trust.condemned
