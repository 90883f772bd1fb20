"""Connections to an S3 service whose every step has a deadline, long enough for its size.

urllib3 sends a whole body within its *connect* timeout, and lets one byte now and then keep a
read alive for ever: a large part could never be written over a slow line, and a trickling answer
never end.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 60.0  # without a byte
SLOWEST_BYTES = 64 << 10  # a second: what is slower than that is taken for broken
_CHUNK_BYTES = 1 << 20


def seconds_for(size: int) -> float:
    """Return how long ``size`` bytes may be under way."""
    return SILENCE_SECONDS + size / SLOWEST_BYTES


class _Sending:
    """Gives each send the time that its size needs; the answer has urllib3's own timeout."""

    sock: Any

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()  # type: ignore[attr-defined]  # of the class beside this one
        self.sock.settimeout(seconds_for(len(data)))
        super().send(data)  # type: ignore[misc]  # the same


class _Plain(_Sending, HTTPConnection):
    pass


class _Secure(_Sending, HTTPSConnection):
    pass


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Secure


def open_pool() -> urllib3.PoolManager:
    """Return a client without retries: one layer of them is enough, and it is not this one."""
    pool = urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS),
        maxsize=16,
        retries=False,
    )
    pool.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
    return pool


def read_body(answer: BaseHTTPResponse) -> bytes:
    """Return the whole body of an answer that was not read yet.

    Raises:
        urllib3.exceptions.HTTPError: it was cut short, or is too slow to wait for.
    """
    length = answer.headers.get("content-length")
    size = int(length) if length is not None else None
    deadline = time.monotonic() + seconds_for(size or 0)
    body = bytearray()
    while chunk := answer.read1(_CHUNK_BYTES):
        body += chunk
        if time.monotonic() > deadline:
            raise urllib3.exceptions.TimeoutError(
                f"only {len(body)} of {length} bytes came in {seconds_for(size or 0):.0f} s"
            )
    if size is not None and size != len(body):
        raise urllib3.exceptions.IncompleteRead(len(body), size - len(body))
    return bytes(body)
