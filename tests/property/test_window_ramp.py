"""The window against simulated engines whose requests arrive late, last, and are put back.

What a fixed window gives is measured on the same engine, so the bar is what could be had. An
answer takes 2 to 10 seconds there; a sample is a second. Nothing is drawn anew between runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from consumer.engine.api import EngineLoad
from consumer.generation.window import Window
from tests.support.simulated_engine import Simulation

MINUTE = 60
GOES_ON = 200  # seconds in which the throughput is then measured: twenty answers and more
SHORT, LONG = (64, 384), (400, 512)  # far from their limit, and close: only these fill the pool
# Places of the engine, how many requests its token pool holds, and the answers that it gives.
ENGINES = [(49, 49, LONG), (128, 60, LONG), (256, 160, LONG), (16, 400, SHORT)]


@dataclass
class Fixed:
    """A window that never moves."""

    size: int

    def observe(self, _load, *, in_flight):
        return in_flight

    def pushed_back(self):
        return self.size


@cache
def best_fixed(places: int, capacity: int, answers: tuple[int, int]) -> float:
    """Tokens a second of the best of some windows around what the engine holds."""
    holds = min(places, capacity)
    sizes = {round(holds * share) for share in (0.7, 0.85, 1.0, 1.2)} | {Window(places).ceiling}
    return max(made(Simulation(places, capacity, answers), Fixed(size)) for size in sizes)


def made(engine: Simulation, window) -> float:
    """Give the window a minute; return the tokens a second after it."""
    engine.run(window, MINUTE)
    return engine.run(window, GOES_ON)


def overfull(places: int) -> Window:
    """A window at its ceiling, as under an engine that took everything so far."""
    window = Window(places)
    for _ in range(20):
        window.observe(EngineLoad(window.size, 0, 0.0, 0, 0), in_flight=window.size)
    assert window.size == window.ceiling
    return window


@pytest.mark.parametrize(("places", "capacity", "answers"), ENGINES)
@pytest.mark.parametrize("begins", [Window, overfull])
def test_after_a_minute_it_gives_what_the_best_fixed_window_would(
    places, capacity, answers, begins
):
    engine = Simulation(places, capacity, answers)
    assert made(engine, begins(places)) >= 0.95 * best_fixed(places, capacity, answers)


@pytest.mark.parametrize(("places", "capacity", "answers"), ENGINES)
def test_it_finds_its_way_again_when_the_capacity_halves_and_when_it_is_back(
    places, capacity, answers
):
    engine, window = Simulation(places, capacity, answers), Window(places)
    engine.run(window, MINUTE)
    for now in (capacity // 2, capacity):
        engine.capacity = now
        assert made(engine, window) >= 0.95 * best_fixed(places, now, answers)


RAMPS = [*ENGINES, (1024, 120, SHORT)]


@pytest.mark.parametrize(("places", "capacity", "answers"), RAMPS)
def test_no_request_fails_because_of_the_ramp(places, capacity, answers):
    """None is out of time: each has thrice what the longest answer takes in a full engine."""
    engine = Simulation(places, capacity, answers)
    engine.deadline = 3 * engine.longest_seconds
    engine.run(Window(places), 2 * MINUTE)
    assert engine.tokens > 0
    assert engine.failed == 0


def test_requests_of_a_window_without_regard_for_the_engine_do_fail_there():
    """So the test before can fail: the same engine, and all that its places could take at once."""
    places, capacity, answers = RAMPS[-1]
    engine = Simulation(places, capacity, answers)
    engine.deadline = 3 * engine.longest_seconds
    engine.run(Fixed(Window(places).ceiling), 2 * MINUTE)
    assert engine.failed > 0
