"""One request in the hands of the S3 proxy, and what can be done with it.

It is passed on untouched, in part or signed anew, answered at once or slowly, or dropped; which of
these is the matter of the faults in :mod:`tests.support.s3_proxy`.
"""

from __future__ import annotations

import http.client
import select
import socket
import struct
import time
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from minio.credentials import Credentials
from minio.signer import sign_v4_s3

from deploy.embedded import REGION

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

    from tests.support.s3_proxy import Fault, S3Proxy

TICK_SECONDS = 0.05


class Operation(StrEnum):
    PUT = "put"
    CREATE = "create"  # a conditional PUT
    GET = "get"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"
    OTHER = "other"


PUT, CREATE, GET, HEAD, LIST, DELETE, OTHER = Operation
ALL = frozenset(Operation)


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Exchange:
    """One request in the proxy's hands, and what can be done with it."""

    def __init__(self, handler: BaseHTTPRequestHandler, proxy: S3Proxy) -> None:
        url = urlsplit(handler.path)
        self.path, self.query = url.path, url.query
        self.operation = _operation(handler)
        self.fault: Fault | None = None
        self.proxy = proxy
        self._handler = handler
        self._upstream = self.proxy.upstream
        self._body: bytes | None = None

    @property
    def length(self) -> int:
        return int(self._handler.headers.get("Content-Length") or 0)

    def body(self) -> bytes:
        if self._body is None:
            self._body = self._handler.rfile.read(self.length)
            if len(self._body) < self.length:
                raise ConnectionError("the client went away in mid-request")
        return self._body

    def forward(self, *, without: str = "") -> Answer:
        """Have the store carry it out, and return what it answers."""
        body = self.body()
        headers = list(self._handler.headers.items())
        if without:
            headers = self._signed_anew([pair for pair in headers if pair[0].lower() != without])
        link = self._open(headers)
        try:
            link.endheaders(body or None)
            answer = link.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            link.close()

    def forward_half(self) -> None:
        """Send the store half of the body, and then nothing until this end of it is gone."""
        link = self._open(list(self._handler.headers.items()))
        try:
            link.endheaders(self._handler.rfile.read(self.length // 2))
            self.wait(until_mended=True)
        finally:
            link.close()

    def answer(self, answer: Answer, *, bytes_a_second: int = 0) -> None:
        handler = self._handler
        handler.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                handler.send_header(name, value)
        length = dict(answer.headers).get("Content-Length", str(len(answer.body)))
        if answer.status != 204:
            handler.send_header("Content-Length", length)
        handler.end_headers()
        if self.operation is HEAD:
            return
        step = bytes_a_second // 10 or len(answer.body) or 1
        for at in range(0, len(answer.body), step):
            handler.wfile.write(answer.body[at : at + step])
            if bytes_a_second:
                self.pause(0.1)

    def read_slowly(self, bytes_a_second: int) -> None:
        parts = []
        while (left := self.length - sum(map(len, parts))) > 0 and not self.mended:
            parts.append(self._handler.rfile.read(min(left, bytes_a_second // 10)))
            self.pause(0.1)
        parts.append(self._handler.rfile.read(left))
        self._body = b"".join(parts)

    def reset(self) -> None:
        """Drop the connection so that the client gets ECONNRESET."""
        self._handler.close_connection = True
        link = self._handler.connection
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.close()

    @property
    def mended(self) -> bool:
        return self.fault is not None and self.fault.mended.is_set()

    def pause(self, seconds: float) -> None:
        if self.fault:
            self.fault.mended.wait(seconds)

    def wait(self, *, until_mended: bool) -> None:
        """Wait until the client is gone, or also until the fault is mended."""
        deadline = time.monotonic() + 60
        while not (until_mended and self.mended) and time.monotonic() < deadline:
            readable, _, _ = select.select([self._handler.connection], [], [], TICK_SECONDS)
            with suppress(OSError):
                if readable and not self._handler.connection.recv(1, socket.MSG_PEEK):
                    return
            self.pause(TICK_SECONDS)

    def _open(self, headers: list[tuple[str, str]]) -> http.client.HTTPConnection:
        place = urlsplit(self._upstream.endpoint)
        link = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        link.putrequest(
            self._handler.command, self._handler.path, skip_host=True, skip_accept_encoding=True
        )
        for name, value in headers:
            link.putheader(name, value)
        return link

    def _signed_anew(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """The headers with a signature that holds for just them."""
        kept = [(name, value) for name, value in headers if name.lower() != "authorization"]
        lower = {name.lower(): value for name, value in kept}
        unsigned = ("content-length", "user-agent", "accept-encoding", "connection")
        signed = sign_v4_s3(
            method=self._handler.command,
            url=urlsplit(f"http://{lower['host']}{self._handler.path}"),
            region=REGION,
            headers={name: value for name, value in lower.items() if name not in unsigned},
            credentials=Credentials(self._upstream.access_key, self._upstream.secret_key),
            content_sha256=lower["x-amz-content-sha256"],
            date=datetime.strptime(lower["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC),
        )
        return [*kept, ("Authorization", signed["Authorization"])]


def _operation(handler: BaseHTTPRequestHandler) -> Operation:
    url = urlsplit(handler.path)
    bucket_only = url.path.strip("/").count("/") == 0
    match handler.command:
        case "GET":
            return LIST if bucket_only else GET
        case "PUT":
            return CREATE if handler.headers.get("If-None-Match") else PUT
        case "HEAD":
            return HEAD
        case "DELETE":
            return DELETE
    return OTHER
