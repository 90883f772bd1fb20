"""How the pump fills a window: call after call, without a pause while there is more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

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
