"""A proxy in front of a real S3 server that does to requests what networks and services do.

    with s3_proxy(server) as proxy:
        proxy.fail("slow down", on={CREATE}, times=2)
        ...
        proxy.mend()

A fault meets the next ``times`` requests (None: all, until ``mend``) of the given operations whose
path holds ``path``. All others are passed on untouched, the Host header too, since it is signed.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

from tests.support.s3_exchange import ALL, LIST, TICK_SECONDS, Answer, Exchange, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from deploy.embedded import S3Server

TRICKLE_BYTES = 1000  # a second
NARROW_BYTES = 4 << 20  # a second
_BUFFER_BYTES = 64 << 10  # small, so that a sender feels how slowly the proxy reads


class Seen(NamedTuple):
    """A request that came, and the fault that met it."""

    operation: Operation
    path: str
    query: str
    fault: str


@dataclass
class Fault:
    name: str
    act: Callable[[Exchange], None]
    on: Collection[Operation]
    path: str
    times: int | None
    mended: threading.Event = field(default_factory=threading.Event)

    def meets(self, exchange: Exchange) -> bool:
        wanted = exchange.operation in self.on and self.path in exchange.path
        return wanted and self.times != 0


class S3Proxy:
    """The proxy as tests see it. Serves in threads of its own, so a test may block."""

    def __init__(self, upstream: S3Server) -> None:
        self.upstream = upstream
        self.seen: list[Seen] = []
        self.busy = 0  # requests in its hands
        self.held = 0  # of these, whole ones that wait for `mend`
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(TICK_SECONDS,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(
        self,
        name: str,
        *,
        on: Collection[Operation] = ALL,
        times: int | None = None,
        path: str = "",
    ) -> None:
        """Let requests meet a fault of `FAULTS`, or an S3 error such as "403 AccessDenied"."""
        act = FAULTS.get(name) or _refused(name)
        with self._lock:
            self._faults.append(Fault(name, act, on, path, times))

    def mend(self) -> None:
        """End all faults; what is held goes on its way."""
        with self._lock:
            ended, self._faults = self._faults, []
        for fault in ended:
            fault.mended.set()

    def count(self, *operations: Operation, fault: str | None = None, path: str = "") -> int:
        """How many requests came, of these operations (or all), that met this fault (or any)."""
        with self._lock:
            return sum(
                one.operation in (operations or ALL)
                and fault in (None, one.fault)
                and path in one.path
                for one in self.seen
            )

    def fault_for(self, exchange: Exchange) -> Fault | None:
        with self._lock:
            fault = next((one for one in self._faults if one.meets(exchange)), None)
            if fault and fault.times:
                fault.times -= 1
            name = fault.name if fault else ""
            self.seen.append(Seen(exchange.operation, exchange.path, exchange.query, name))
        return fault

    def add(self, *, busy: int = 0, held: int = 0) -> None:
        with self._lock:
            self.busy += busy
            self.held += held

    def close(self) -> None:
        self.mend()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def s3_proxy(upstream: S3Server) -> Iterator[S3Proxy]:
    proxy = S3Proxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: S3Proxy

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        super().server_bind()

    def handle_error(self, request, client_address) -> None:
        """Clients that give up are what this is about; they are no errors."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_any(self) -> None:
        proxy = self.server.proxy
        exchange = Exchange(self, proxy)
        fault = exchange.fault = proxy.fault_for(exchange)
        proxy.add(busy=1)
        try:
            if fault:
                fault.act(exchange)
            else:
                exchange.answer(exchange.forward())
        finally:
            proxy.add(busy=-1)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any  # noqa: N815 - the base's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


# --- faults: what becomes of one request


def _refused(name: str) -> Callable[[Exchange], None]:
    """The fault of an S3 error: its status, and its code in the body as S3 writes it."""
    status, code = name.split()
    xml = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>'

    def act(exchange: Exchange) -> None:
        exchange.body()
        headers = [("Content-Type", "application/xml")]
        exchange.answer(Answer(int(status), headers, xml.encode()))

    return act


def _reset(exchange: Exchange) -> None:
    exchange.reset()


def _time_out(exchange: Exchange) -> None:
    """Take the request, do nothing, and never answer."""
    exchange.body()
    exchange.wait(until_mended=True)
    exchange.reset()


def _black_hole(exchange: Exchange) -> None:
    """Not even the body is taken off the wire."""
    exchange.wait(until_mended=True)
    exchange.reset()


def _lose_answer(exchange: Exchange) -> None:
    exchange.forward()
    exchange.reset()


def _repeat(exchange: Exchange) -> None:
    """A balancer that sends it twice, and passes on the second answer."""
    exchange.forward()
    exchange.answer(exchange.forward())


def _strip(exchange: Exchange) -> None:
    """A store that does not know conditions."""
    exchange.answer(exchange.forward(without="if-none-match"))


def _trickle(exchange: Exchange) -> None:
    exchange.read_slowly(TRICKLE_BYTES)
    exchange.answer(exchange.forward(), bytes_a_second=TRICKLE_BYTES)


def _narrow(exchange: Exchange) -> None:
    """A line that carries a few megabytes a second, upwards."""
    exchange.read_slowly(NARROW_BYTES)
    exchange.answer(exchange.forward())


def _hold(exchange: Exchange) -> None:
    """The request is on its way until `mend`, also when its client is gone."""
    exchange.body()
    exchange.proxy.add(held=1)
    exchange.fault.mended.wait(60)
    exchange.proxy.add(held=-1)
    answer = exchange.forward()
    with suppress(OSError):
        exchange.answer(answer)


def _stop_half_way(exchange: Exchange) -> None:
    exchange.forward_half()
    exchange.reset()


def _cut(exchange: Exchange) -> None:
    """Half of the answer's body, and the connection is gone."""
    answer = exchange.forward()
    length = [("Content-Length", str(len(answer.body)))]
    headers = [pair for pair in answer.headers if pair[0].lower() != "content-length"]
    exchange.answer(Answer(answer.status, headers + length, answer.body[: len(answer.body) // 2]))
    exchange.reset()


def _stale(exchange: Exchange) -> None:
    """A store that does not yet know what was just written."""
    exchange.body()
    if exchange.operation is LIST:
        xml = (
            "<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>"
            "</ListBucketResult>"
        )
        exchange.answer(Answer(200, [("Content-Type", "application/xml")], xml.encode()))
    else:
        _refused("404 NoSuchKey")(exchange)


def _foreign_page(exchange: Exchange) -> None:
    """A proxy's own page, where the store's answer was due."""
    exchange.body()
    page = b"<html><body><p>Please log in<br></body></html>"
    exchange.answer(Answer(200, [("Content-Type", "text/html")], page))


FAULTS: dict[str, Callable[[Exchange], None]] = {
    "500": _refused("500 InternalError"),
    "503": _refused("503 SlowDown"),
    "429": _refused("429 TooManyRequests"),
    "409": _refused("409 ConditionalRequestConflict"),
    "reset": _reset,
    "timeout": _time_out,
    "black hole": _black_hole,
    "answer lost": _lose_answer,
    "repeat": _repeat,
    "strip": _strip,
    "trickle": _trickle,
    "narrow": _narrow,
    "hold": _hold,
    "half": _stop_half_way,
    "cut": _cut,
    "stale": _stale,
    "foreign page": _foreign_page,
}
