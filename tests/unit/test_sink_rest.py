from __future__ import annotations

import asyncio

from consumer.sink.rest import FIRST_SECONDS, LONGEST_SECONDS, Rest


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def rested(rest: Rest, clock: Clock) -> float:
    """Let the time pass until it is time to look; return how long that was."""
    began = clock.now
    while not rest.due:
        clock.now += 0.01
    return clock.now - began


async def test_the_looks_become_rarer_while_nothing_happens() -> None:
    clock = Clock()
    rest = Rest(asyncio.Event(), clock)
    assert rest.due
    rest.begin()
    seconds = FIRST_SECONDS
    assert seconds / 2 - 0.1 <= rested(rest, clock) <= seconds + 0.1
    while seconds < LONGEST_SECONDS:
        seconds = min(2 * seconds, LONGEST_SECONDS)
        rest.go_on()
        assert seconds / 2 - 0.1 <= rested(rest, clock) <= seconds + 0.1
    rest.go_on()
    assert rested(rest, clock) <= LONGEST_SECONDS + 0.1
    rest.begin()
    assert rested(rest, clock) <= FIRST_SECONDS + 0.1


async def test_news_and_a_stop_end_the_wait() -> None:
    stop = asyncio.Event()
    rest = Rest(stop, Clock())
    rest.begin()
    waiting = asyncio.create_task(rest.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    rest.wake()
    async with asyncio.timeout(5):
        await waiting
    waiting = asyncio.create_task(rest.wait())  # that news is old
    await asyncio.sleep(0)
    assert not waiting.done()
    stop.set()
    async with asyncio.timeout(5):
        await waiting


async def test_what_is_due_is_not_waited_for() -> None:
    async with asyncio.timeout(5):
        await Rest(asyncio.Event(), Clock()).wait()
