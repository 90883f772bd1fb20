"""A supervisor over the stand-in, until the end of a block, and what it told its listeners."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from common.records import Sampling
from consumer.engine.api import GenerateRequest
from consumer.engine.process import session_members
from consumer.engine.supervisor import Signals, StartBudget, Supervisor
from tests.support.fake_engine import FakeSglang, fake_state
from tests.support.servers import eventually

if TYPE_CHECKING:
    from consumer.engine.states import EngineState

BUDGET = StartBudget(
    start_seconds=20,
    young_seconds=30,
    attempts=3,
    backoff_base_seconds=0.05,
    stop_seconds=10,
    kill_seconds=0.3,
    poll_seconds=0.05,
)


class Watched:
    """A supervisor and what it told its listeners."""

    def __init__(self, spec, **options):
        self.states: list[tuple[EngineState, int]] = []
        self.downs: list[tuple[int, str]] = []
        self.waiting = 0
        options = {"budget": BUDGET, "stall_seconds": 1.0} | options
        self.supervisor = Supervisor(
            options.pop("engine", None) or FakeSglang(),
            spec,
            signals=Signals(on_state=lambda state, n: self.states.append((state, n))),
            in_flight=lambda: self.waiting,
            on_down=lambda n, reason: self.downs.append((n, reason)),
            **options,
        )

    async def ask(self, n=1, **fields):
        sampling = Sampling(max_tokens=fields.pop("max_tokens", 50))
        request = GenerateRequest(f"{n:032x}", [65, 66, n % 200], sampling, seed=n)
        path, body = self.supervisor.engine.generate(request)
        self.waiting += 1
        try:
            return await self.supervisor.http.post(path, body, 30)
        finally:
            self.waiting -= 1

    @property
    def session(self) -> int:
        return self.supervisor._life._spawn.result().pid


@contextlib.asynccontextmanager
async def supervised(spec, **options):
    watched = Watched(spec, **options)
    try:
        async with asyncio.timeout(60):
            await watched.supervisor.start()
            yield watched
    finally:
        session = None
        with contextlib.suppress(Exception):
            session = watched.session
        await watched.supervisor.stop(now=True)
        if session is not None:
            assert session_members(session) == []


async def until_running(it, count):
    async def enough():
        return len((await fake_state(it.supervisor.spec))["running"]) >= count

    await eventually(enough, 20)
