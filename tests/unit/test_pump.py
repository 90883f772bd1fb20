"""How the pump fills a window: call after call, without a pause while there is more."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from consumer.generation import pump as pump_module
from consumer.generation.pump import Pump
from consumer.generation.window import Window
from consumer.leases.fetcher import MOST_AT_ONCE
from tests.support.servers import eventually

WINDOW = 4 * MOST_AT_ONCE


class Fetcher:
    def __init__(self) -> None:
        self.asked: list[int] = []

    async def fetch(self, n):
        self.asked.append(n)
        return [SimpleNamespace(held=Held(), suspect=False) for _ in range(n)]


class Held:
    on_lost = None
    handed = True
    lost = False
    run = "r"


class Runner:
    async def run(self, _work, _ready):
        await asyncio.Event().wait()


async def test_a_large_window_is_filled_without_a_pause_between_lease_calls(monkeypatch) -> None:
    monkeypatch.setattr(pump_module, "IDLE_SECONDS", 600.0)  # one pause, and it is never filled
    fetcher = Fetcher()
    outbox = SimpleNamespace(full=False)
    pump = Pump(fetcher, SimpleNamespace(), outbox, Runner(), window=Window(WINDOW, size=0))
    pump.window.size = WINDOW
    pump._ready = SimpleNamespace()
    task = asyncio.create_task(pump.run())
    await eventually(lambda: pump.in_flight >= WINDOW, 30)
    assert fetcher.asked == [MOST_AT_ONCE] * 4
    assert pump._room() == 0
    pump.leaving = lambda: 3
    pump.window.size += 5
    assert pump._room() == 2
    for running in (task, *pump._tasks.values()):
        running.cancel()
    await asyncio.gather(task, *pump._tasks.values(), return_exceptions=True)


async def test_an_item_that_waits_to_run_alone_can_be_stopped_too() -> None:
    released, held = [], Held()
    keeper = SimpleNamespace(find=lambda _run, _item: held)
    outbox = SimpleNamespace(full=False, release=released.append)
    pump = Pump(Fetcher(), keeper, outbox, Runner(), window=Window(8))
    pump._ready = SimpleNamespace()
    pump._take(SimpleNamespace(held=held, suspect=True))
    assert pump.stop_item("r", 5)
    assert released == [held]
    assert not pump._suspects
    assert not pump.stop_item("r", 5)


@pytest.mark.parametrize("why", ["the run is held", "the engine is down"])
async def test_what_waits_to_run_alone_is_given_back_where_nothing_may_begin(why) -> None:
    """Nobody knows how long that is; a burst would wait for it, and others have engines."""
    released, held, closed = [], Held(), []
    outbox = SimpleNamespace(full=False, release=released.append)
    keeper = SimpleNamespace(all=list)
    pump = Pump(Fetcher(), keeper, outbox, Runner(), closed=lambda: "".join(closed))
    pump._ready = SimpleNamespace()
    pump._take(SimpleNamespace(held=Held(), suspect=False))  # the engine is not free yet
    pump._take(SimpleNamespace(held=held, suspect=True))
    assert pump._room() == 0
    assert released == []
    if why == "the run is held":
        closed.append(why)
        assert pump._room() == 0
    else:
        pump.engine_down()
    assert released == [held]
    assert not pump._suspects
    await pump.drain(0.0, asyncio.Event())
    assert released == [held]


async def test_a_drain_cancels_until_all_have_ended() -> None:
    """Before Python 3.12 `asyncio.wait_for` may swallow a cancellation."""

    class Deaf:
        async def run(self, _work, _ready):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()

    keeper = SimpleNamespace(all=list)
    outbox = SimpleNamespace(full=False, release=lambda _held: None)
    pump = Pump(Fetcher(), keeper, outbox, Deaf(), window=Window(8))
    pump._ready = SimpleNamespace()
    pump._take(SimpleNamespace(held=Held(), suspect=False))
    await eventually(lambda: pump.in_flight, 30)
    await asyncio.sleep(0)  # poll: until the item has begun to wait
    async with asyncio.timeout(30):
        await pump.drain(0.0, asyncio.Event())
    assert pump.in_flight == 0
