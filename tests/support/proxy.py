"""A TCP proxy that goes wrong at a word: between a client and any server, switched while it runs.

It has a thread and an event loop of its own, so a test may block, and so may the clients. Bytes
are never changed; they come late, in part, or not at all.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOPBACK = "127.0.0.1"
CHUNK = 1 << 16
TRICKLE_STEPS = 20  # pieces a second


@dataclass(eq=False)
class _Link:
    """One client's connection and its counterpart."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    losing: bool = False  # the next answer is lost, and the connection with it
    tail: bytes = b""  # the end of what was sent last: a mark may come in two pieces
    answered: int = 0

    def reset(self) -> None:
        """End it as a crashed host's router would: at once, both ways."""
        for writer in filter(None, (self.client, self.server)):
            _abort(writer)


@dataclass
class _Loss:
    """Which answers are lost: those to calls that hold ``mark``, but for the first ``spared``."""

    mark: bytes
    spared: int
    left: int
    hits: int = 0


@dataclass
class Proxy:
    """One port that leads to another. Switches hold for connections old and new."""

    upstream: int
    port: int = 0
    latency_seconds: float = 0.0  # added to each way through, for every piece
    bytes_per_second: int = 0  # towards the client; 0: as fast as it goes
    cut_after: int | None = None  # bytes of answers, then each connection is reset
    refusing: bool = False  # new connections are reset at once
    _loss: _Loss | None = None
    _links: set[_Link] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _through: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, url: str) -> str:
        """Return a URL that leads through here instead of straight to the server."""
        parts = urlsplit(url)
        place = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return parts._replace(netloc=f"{place}{LOOPBACK}:{self.port}").geturl()

    @property
    def connections(self) -> int:
        return len(self._links)

    @property
    def lost(self) -> int:
        """How many answers were lost since :meth:`lose_answers`."""
        return self._loss.hits if self._loss else 0

    def lose_answers(self, mark: bytes, *, count: int = 1, after: int = 0) -> None:
        """Lose the answers of ``count`` calls that hold ``mark``, the first ``after`` spared.

        The server carries such a call out; its client finds the connection reset instead.
        """
        self._loss = _Loss(mark, after, count)

    def black_hole(self, *, on: bool) -> None:
        """Let nothing through, and say nothing; when it ends all that was held goes its way.

        That is what a partition does: what a client sent before it gave up arrives late.
        """
        self._soon(self._through.clear if on else self._through.set)

    def reset_all(self) -> None:
        """End all connections; what they held is lost."""
        self._soon(lambda: [link.reset() for link in list(self._links)])

    def repoint(self, port: int, *, keep: bool = False) -> None:
        """Lead new connections elsewhere; old ones are reset, or kept with their old server."""
        self.upstream = port
        if not keep:
            self.reset_all()

    # In the proxy's own thread

    def _soon(self, call: Callable[[], object]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (call(), done.set()))
        assert done.wait(10)

    async def _serve(self, client_in: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        link = _Link(client)
        self._links.add(link)
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._through.wait()
            if self.refusing:
                return
            server_in, link.server = await asyncio.open_connection(LOOPBACK, self.upstream)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask(link, client_in))
                group.create_task(self._answer(link, server_in))
        except* OSError:
            pass  # either side went away
        except* asyncio.CancelledError:
            pass  # the proxy ends
        finally:
            self._links.discard(link)
            self._tasks.discard(task)
            link.reset()

    async def _ask(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            await self._delay()
            if self._is_lost(link, data):
                link.losing = True
            link.server.write(data)
            await link.server.drain()
        if link.server.can_write_eof():
            link.server.write_eof()

    async def _answer(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            await self._delay()
            if link.losing:
                link.reset()
                return
            if self.cut_after is not None and link.answered + len(data) > self.cut_after:
                await self._send(link, data[: max(0, self.cut_after - link.answered)])
                link.reset()
                return
            await self._send(link, data)
        link.reset()

    def _is_lost(self, link: _Link, data: bytes) -> bool:
        loss = self._loss
        if loss is None:
            return False
        text = link.tail + data
        link.tail = text[-len(loss.mark) + 1 :]
        if loss.mark not in text:
            return False
        if loss.spared:
            loss.spared -= 1
            return False
        if not loss.left:
            return False
        loss.left -= 1
        loss.hits += 1
        return True

    async def _delay(self) -> None:
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)  # lasts: the way there or back
        await self._through.wait()

    async def _send(self, link: _Link, data: bytes) -> None:
        step = max(1, self.bytes_per_second // TRICKLE_STEPS) if self.bytes_per_second else CHUNK
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            link.client.write(piece)
            await link.client.drain()
            link.answered += len(piece)
            if self.bytes_per_second:
                await asyncio.sleep(1 / TRICKLE_STEPS)  # lasts: a piece on a slow line

    async def _run(
        self, started: threading.Event, stop: asyncio.Event, listener: socket.socket | None
    ) -> None:
        self._through.set()
        if listener is not None:
            server = await asyncio.start_server(self._serve, sock=listener)
        else:
            server = await asyncio.start_server(self._serve, LOOPBACK, self.port)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _abort(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, AttributeError):
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextmanager
def running_proxy(
    upstream: int,
    *,
    listener: socket.socket | None = None,
    enter: Callable[[], None] = lambda: None,
) -> Iterator[Proxy]:
    """Run a proxy to a port of this machine.

    ``listener``: where clients come in, if not at a port of its own. ``enter``: called first in
    the proxy's thread, so that the way on begins in another network namespace.
    """
    proxy, started, stop = Proxy(upstream), threading.Event(), asyncio.Event()

    def serve() -> None:
        enter()
        proxy._loop.run_until_complete(proxy._run(started, stop, listener))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield proxy
    finally:
        proxy._loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        proxy._loop.close()
