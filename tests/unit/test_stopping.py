"""Once to drain, twice to stop now."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from common.errors import Exit
from consumer import stopping as module
from consumer.stopping import Stopping, end_tasks
from tests.support.servers import eventually


async def test_the_first_signal_drains_and_the_second_hurries() -> None:
    stopping = Stopping()
    stopping.listen()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await stopping.wait()
        assert stopping.code == Exit.TERMINATED
        assert not stopping.hurried.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await eventually(stopping.hurried.is_set)
        assert stopping.code == Exit.TERMINATED
    finally:
        stopping.deafen()


async def test_a_signal_doubled_by_the_pool_is_one() -> None:
    stopping = Stopping(forgive_seconds=60.0)
    stopping.ask(Exit.INTERRUPTED)
    stopping.ask(Exit.INTERRUPTED)
    assert not stopping.hurried.is_set()


async def test_the_shutdown_command_said_twice_does_not_hurry() -> None:
    stopping = Stopping()
    ask = stopping.ask_from_thread(Exit.DONE)
    ask()
    ask()
    await stopping.wait()
    assert stopping.code == Exit.DONE
    assert not stopping.hurried.is_set()


async def test_a_task_that_swallows_a_cancellation_ends_all_the_same(monkeypatch) -> None:
    monkeypatch.setattr(module, "CANCEL_AGAIN_SECONDS", 0.01)
    begun = asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await begun.wait()
    await asyncio.wait_for(end_tasks([task]), 10)
    assert task.cancelled()
