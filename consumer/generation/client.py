"""Sends requests to the engine that is up now, once each, and lets go of them cleanly."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from consumer.engine.api import Reply
from consumer.engine.states import EngineState

if TYPE_CHECKING:
    from consumer.engine.api import Engine, GenerateRequest, Http


# How long after a lost connection to wait for news of the engine's death: the process ends a
# moment after its sockets. One that goes on answering is alive.
DEATH_SECONDS = 10.0
POLL_SECONDS = 0.2
SIGNS_OF_LIFE = 3
ASK_SECONDS = 2.0
ABORTS_AT_ONCE = 32


class Serving(Protocol):
    """What the client needs to know of the supervisor."""

    @property
    def state(self) -> EngineState:
        """The engine's state."""
        ...

    @property
    def incarnation(self) -> int:
        """Goes up with each start of the engine."""
        ...

    @property
    def http(self) -> Http:
        """The connection to the engine."""
        ...


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a request; ``died``: the engine died of its own with the request in it."""

    reply: Reply
    died: bool = False


class Client:
    """Generations in flight at one supervised engine.

    A request is sent once: whether to try again is the queue's decision. ``attached``: the server
    is somebody else's, and goes on with what it has when we think it down.
    """

    def __init__(self, engine: Engine, serving: Serving, *, attached: bool = False) -> None:
        self._engine = engine
        self._serving = serving
        self._calls: dict[asyncio.Task[Reply], int] = {}
        self._down: dict[asyncio.Task[Reply], Sent] = {}
        self._gone: dict[int, bool] = {}  # incarnations that are down, and whether they died
        self._aborts: set[asyncio.Task[None]] = set()
        self._attached = attached
        self._left: list[str] = []  # requests to abort once an attached server can be asked again
        self._autopsies: dict[int, asyncio.Task[bool]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def leaving(self) -> int:
        """How many given-up requests the engine may still be working on."""
        return len(self._aborts)

    async def send(self, request: GenerateRequest, *, seconds: float) -> Sent:
        """Return the engine's reply, or how there came to be none.

        When the caller is cancelled, the engine is told to give the request up.
        """
        if not self._up:
            return Sent(Reply(None, b"", "the engine is not ready", sent=False))
        incarnation = self._serving.incarnation
        path, body = self._engine.generate(request)
        call = asyncio.ensure_future(self._serving.http.post(path, body, seconds))
        self._calls[call] = incarnation
        began = time.monotonic()
        try:
            reply = await call
        except asyncio.CancelledError:
            if call in self._down and not _cancelled_from_outside():
                self._abort(request.rid)
                return self._down[call]
            call.cancel()
            self._abort(request.rid)
            raise
        finally:
            self._calls.pop(call, None)
            self._down.pop(call, None)
        if reply.status is not None or not reply.sent:
            return Sent(reply)
        in_time = time.monotonic() - began < seconds
        died = in_time and await self._died(incarnation)
        if not died:
            self._abort(request.rid)  # out of time or touch here is not out of mind there
        return Sent(reply, died)

    async def settle(self) -> None:
        """Abort what an attached server may still be working on, before it is given more."""
        left, self._left = self._left, []
        for start in range(0, len(left), ABORTS_AT_ONCE):
            some = left[start : start + ABORTS_AT_ONCE]
            await asyncio.gather(*(self._engine.abort(self._serving.http, rid) for rid in some))

    def engine_down(self, incarnation: int, reason: str, *, died: bool) -> None:
        """End every request that the engine of that incarnation (or an older one) will not answer.

        ``died``: of its own, so one of the requests may have been the cause.
        """
        self._gone[incarnation] = died
        for call, born in list(self._calls.items()):
            if born <= incarnation and not call.done():
                self._down[call] = Sent(Reply(None, b"", f"engine down: {reason}"), died)
                call.cancel()

    async def _died(self, incarnation: int) -> bool:
        """Return whether the engine died of its own, now that a connection to it broke."""
        task = self._autopsies.get(incarnation)
        if task is None or task.done():  # one for all whose connections broke together
            task = asyncio.create_task(self._autopsy(incarnation, self._serving.http))
            self._autopsies = {incarnation: task}
        return await asyncio.shield(task)

    async def _autopsy(self, incarnation: int, http: Http) -> bool:
        until, signs = time.monotonic() + DEATH_SECONDS, 0
        while incarnation not in self._gone and time.monotonic() < until and signs < SIGNS_OF_LIFE:
            await asyncio.sleep(POLL_SECONDS)
            reply = await http.get("/", ASK_SECONDS)  # whatever it says, it speaks
            signs = 0 if reply.status is None else signs + 1
        return self._gone.get(incarnation, False)

    @property
    def _up(self) -> bool:
        serving = self._serving
        return serving.state is EngineState.READY and serving.incarnation not in self._gone

    async def close(self) -> None:
        """Wait shortly for the last aborts to be sent."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=2.0)

    def _abort(self, rid: str) -> None:
        if self._up:
            task = asyncio.create_task(self._tell(rid))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)
        elif self._attached:
            self._left.append(rid)

    async def _tell(self, rid: str) -> None:
        incarnation = self._serving.incarnation
        await self._engine.abort(self._serving.http, rid)
        if self._attached and incarnation in self._gone:  # the connection was closed under it
            self._left.append(rid)


def _cancelled_from_outside() -> bool:
    """Return whether the running task itself was cancelled, not only the call it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
