"""Once to drain, twice to stop now."""

from __future__ import annotations

import os
import signal

from common.errors import Exit
from consumer.stopping import Stopping
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
