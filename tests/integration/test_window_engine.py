"""The window on the way of a whole consumer: a token pool, retractions and refusals, end to end.

Real Redis, real consumer; the stand-in has the pool. A sample is a tenth of a second here and an
answer six samples, as a second and six would be. Bounds are counts of samples, which a busy
machine makes longer and not more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from common.records import Sampling
from consumer import daemon
from consumer.engine.supervisor import StartBudget
from consumer.generation.window import START, WAITING_SHARE, Window
from tests.support.fake_engine import fake_state, running_fake, set_faults
from tests.support.servers import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer.engine.api import EngineLoad

SAMPLE_SECONDS = 0.1
BUDGET = StartBudget(poll_seconds=SAMPLE_SECONDS)
ANSWER = 60  # tokens, and one that ends it
FLAGS = ("--token-seconds", "0.01", "--answer-tokens", str(ANSWER))
SAMPLING = Sampling(max_tokens=ANSWER + 4)  # answers end close to their limit: the pool gets full
PLACES = 64
PATIENCE = WAITING_SHARE * PLACES
POOL = 2700  # room for 30 of the 90 tokens that a request holds at its end
ENOUGH = 80  # samples in which the window has to find its size
SECONDS = 120.0  # for them on the busiest of machines


@dataclass(frozen=True)
class Sample:
    size: int
    in_flight: int
    load: EngineLoad

    @property
    def saturated(self) -> bool:
        """All that fits runs, and only a short queue is ahead."""
        return self.load.running > START and 0 < self.load.waiting <= PATIENCE


class Samples(list[Sample]):
    async def until(self, settled: Callable[[list[Sample]], bool], *, since: int = 0) -> int:
        """Wait for three samples in a row that are ``settled``; return how many it took."""

        def found() -> int:
            for n in range(since + 3, len(self) + 1):
                if settled(self[n - 3 : n]):
                    return n - since
            return 0

        return int(await eventually(found, SECONDS))


@pytest.fixture
def samples(monkeypatch):
    seen, real = Samples(), Window.observe

    def observe(self, load, *, in_flight):
        size = real(self, load, in_flight=in_flight)
        seen.append(Sample(size, in_flight, load))
        return size

    monkeypatch.setattr(Window, "observe", observe)
    monkeypatch.setattr(daemon, "LOAD_SECONDS", SAMPLE_SECONDS)
    return seen


def saturated(some: list[Sample]) -> bool:
    return all(sample.saturated for sample in some)


async def test_it_finds_what_the_engine_holds_and_again_when_that_halves(world, samples) -> None:
    """From below; it gives way when requests are put back; nobody fails or is charged."""
    await world.load(4000, sampling=SAMPLING, request_seconds=60.0)
    async with running_fake(world.folder, *FLAGS, api_key="", max_running=PLACES) as engine:
        await set_faults(engine, token_pool=POOL, queue_limit=PLACES)
        async with world.serving(url=engine.url, budget=BUDGET):
            assert await samples.until(saturated) <= ENOUGH
            assert samples[0].in_flight <= START
            full = samples[-1].load.running
            assert max(sample.size for sample in samples) < Window(PLACES).ceiling

            before = len(samples)
            await set_faults(engine, token_pool=POOL // 2)
            assert await samples.until(saturated, since=before) <= ENOUGH
            assert samples[-1].load.running < 0.8 * full
        state = await fake_state(engine)
    # Not by the first look: a retraction soon after another cut counts with that one.
    assert min(sample.size for sample in samples[before:]) < samples[before - 1].size
    assert samples[-1].load.retractions > samples[before - 1].load.retractions
    seen = await world.counts()
    assert (seen.failures, seen.dead, seen.waiting, state["refused"]) == ({}, 0, 0, 0)
    assert {result["attempt"] for result in world.results()} == {1}
    assert state["retracted"] > 0


@pytest.mark.row("B7")
@pytest.mark.parametrize("status", [503, 429])
@pytest.mark.faults
async def test_it_gives_way_to_an_engine_that_pushes_back(world, samples, status) -> None:
    """What is refused goes back to the queue, and none of it is charged."""
    await world.load(200, sampling=SAMPLING)
    async with running_fake(world.folder, *FLAGS, api_key="", max_running=16) as engine:
        async with world.serving(url=engine.url, budget=BUDGET):
            await samples.until(lambda some: all(s.size == Window(16).ceiling for s in some))
            before = len(samples)
            await set_faults(engine, queue_limit=1, queue_status=status)
            await world.generated(200)
        state = await fake_state(engine)
    assert min(sample.size for sample in samples[before:]) < 16
    assert 0 < state["refused"] < 100  # a window that stays would have nearly each one refused
    seen = await world.counts()
    assert (seen.failures, seen.dead) == ({"busy": state["refused"]}, 0)
    assert sorted(result["k"] for result in world.results()) == list(range(200))
    assert {result["attempt"] for result in world.results()} == {1}
