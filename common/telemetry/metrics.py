"""The page that Prometheus reads, and the one that says whether a service is alive.

On loopback unless ``GENQ_METRICS_HOST`` says otherwise. There is no login: whoever reaches the
port sees names of runs and counts, never a prompt, a completion or an id.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import structlog

from common.errors import ConflictError, UsageError
from common.settings import origin_of
from common.telemetry.probe import HEALTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from common.settings import Settings
    from common.telemetry.readings import Readings

log = structlog.get_logger()
METRICS = "/metrics"
CLIENT_SECONDS = 10.0  # a client that says nothing for so long is left


def render(readings: Readings) -> tuple[bytes, str]:
    """Return the page, and its content type."""
    from prometheus_client import (  # noqa: PLC0415 - only where somebody asks
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        generate_latest,
    )

    registry = CollectorRegistry()  # ours alone: the default one adds what nobody asked for
    registry.register(_Once(readings))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Once:
    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        return self._readings.collect()


@contextmanager
def serve_metrics(
    settings: Settings,
    read: Callable[[], Readings],
    *,
    healthy: Callable[[], bool] = lambda: True,
    flag: str = "--metrics-port",
) -> Iterator[None]:
    """Answer /metrics and /healthz meanwhile, from threads; no port, no endpoint.

    ``flag``: what the command calls the port. ``read`` and ``healthy`` are called on those threads
    and must not wait.

    Raises:
        ConflictError: another process has the port.
        UsageError: the host is no address of this machine, or the port not for this user.
    """
    if settings.metrics_port is None:
        log.info("metrics.off", fix="--metrics-port PORT    (or GENQ_METRICS_PORT) shows them")
        yield
        return
    server = _open(settings.metrics_host, settings.metrics_port, read, healthy, flag)
    if not _is_loopback(server.server_address[0]):
        log.warning(
            "metrics are open to other hosts, without a login",
            host=settings.metrics_host,
            port=settings.metrics_port,
            fix="unset GENQ_METRICS_HOST, or let a firewall admit Prometheus alone",
        )
    # It looks so often whether it is to end, which nobody should wait long for.
    serve = partial(server.serve_forever, poll_interval=0.1)
    thread = Thread(target=serve, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=2.0)


def _open(
    host: str, port: int, read: Callable[[], Readings], healthy: Callable[[], bool], flag: str
) -> ThreadingHTTPServer:
    class Handler(_Handler):
        read_ = staticmethod(read)
        healthy_ = staticmethod(healthy)

    class Server(_Server):
        pass

    try:
        Server.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return Server((host, port), Handler)
    except OSError as error:
        kind = ConflictError if error.errno == errno.EADDRINUSE else UsageError
        raise kind(
            f"Metrics cannot be served on {host}, port {port}.",
            why=f"{error}. The host comes from {origin_of('metrics_host', {})}.",
            fix=_remedy(error, flag, port),
        ) from error


def _remedy(error: OSError, flag: str, port: int) -> str:
    """Return what helps: another port, or another host."""
    if error.errno == errno.EADDRINUSE:
        return f"Choose another {flag}, or end what listens there:  ss -ltnp 'sport = :{port}'"
    if error.errno == errno.EACCES:
        return f"Choose a {flag} of 1024 or more: lower ones are for root."
    return "unset GENQ_METRICS_HOST    (or name an address of this machine)"


def _is_loopback(host: object) -> bool:
    return ipaddress.ip_address(str(host).partition("%")[0]).is_loopback


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say it in our log's form: a client that hung up is nothing to tell a person."""
        del request
        log.debug("metrics not sent", client=client_address, why=repr(sys.exc_info()[1]))


class _Handler(BaseHTTPRequestHandler):
    """Answers two pages. It must not look like our daemons to a scanner: no version in its name."""

    timeout = CLIENT_SECONDS
    server_version = "genq"
    sys_version = ""
    read_: Callable[[], Readings]
    healthy_: Callable[[], bool]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == METRICS:
            self._answer(200, *render(self.read_()))
        elif path == HEALTH:
            alive = self.healthy_()
            text = b"ok\n" if alive else b"the event loop does not turn\n"
            self._answer(200 if alive else 503, text, "text/plain")
        else:
            self._answer(404, f"{METRICS} or {HEALTH}\n".encode(), "text/plain")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        log.debug("metrics", line=format % args)
