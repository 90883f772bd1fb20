from __future__ import annotations

from consumer.engine.crashloop import CrashLoop, MemoryDeaths


def lives(loop: CrashLoop, *kinds: str) -> list[bool]:
    over = []
    for kind in kinds:
        loop.ended(long=kind == "long", useful=kind == "useful", suspect=kind == "suspect")
        over.append(loop.over)
    return over


def test_useless_lives_in_a_row_are_the_end():
    assert lives(CrashLoop(3, 9), *["useless"] * 3) == [False, False, True]


def test_a_long_life_wipes_all_out():
    loop = CrashLoop(3, 4)
    assert not any(lives(loop, "useless", "useless", "long", "useless", "useless"))
    assert not any(lives(loop, "useful", "useful", "useful", "long", "suspect", "suspect"))


def test_two_rows_that_kill_engines_are_not_the_end_of_a_good_one():
    """Each dies in company three times (at the head of the queue, so at once), then alone."""
    poison = ["useful", "useless", "useless", "suspect", "suspect", "suspect"]
    assert not any(lives(CrashLoop(5, 20), *poison, "useful", *poison, "useful"))
    both = ["useless", "useless", "useless", *["suspect"] * 6]
    assert not any(lives(CrashLoop(5, 20), *both))


def test_an_engine_that_dies_young_for_ever_ends_though_it_answers_a_little():
    over = lives(CrashLoop(5, 20), *["useful"] * 20)
    assert over.index(True) == 19


def test_the_pause_grows_with_the_failures_in_a_row():
    loop = CrashLoop(5, 20)
    lives(loop, "useless", "useless")
    assert loop.in_a_row == 2
    lives(loop, "long")
    assert loop.in_a_row == 0


def test_each_two_deaths_for_want_of_memory_within_the_window_call_for_less():
    deaths = MemoryDeaths(window_seconds=100)
    assert [deaths.died(now) for now in (0, 100, 110, 120)] == [False, True, False, True]


def test_deaths_for_want_of_memory_that_lie_apart_are_chance():
    deaths = MemoryDeaths(window_seconds=100)
    assert [deaths.died(now) for now in (0, 101, 300, 399)] == [False, False, False, True]
