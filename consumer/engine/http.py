"""One HTTP session to one engine: every outcome is a :class:`Reply`, no request is sent twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from consumer.engine.api import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECT_SECONDS = 5.0
# Servers close idle connections after 5 s; one reused at that very moment would lose its request.
KEEPALIVE_SECONDS = 2.0
_JSON = {"Content-Type": "application/json"}
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class EngineHttp:
    """A session without a limit of connections: how many requests run is the window's matter.

    Promises that a POST leaves at most once and that no fault of the network is raised;
    cancellation passes through and closes the request's connection, which engines take as an
    abort. Does not retry and does not judge a status.
    """

    def __init__(self, base_url: str, api_key: str = "") -> None:
        self.base_url = base_url.rstrip("/")
        self.answered = 0  # POSTs that came back with a status: a sign of life
        self._headers = {"Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def post(self, path: str, body: Mapping[str, Any], timeout_seconds: float) -> Reply:
        """Send ``body`` as JSON, once, and return what became of it."""
        data = orjson.dumps(body)
        reply = await self._call("POST", path, data, timeout_seconds)
        self.answered += reply.status is not None
        return reply

    async def get(self, path: str, timeout_seconds: float) -> Reply:
        """Fetch ``path`` and return what became of it."""
        return await self._call("GET", path, None, timeout_seconds)

    async def close(self) -> None:
        """Close all connections: calls in progress end at once, with an error."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _call(self, method: str, path: str, data: bytes | None, seconds: float) -> Reply:
        if self._closed:
            return Reply(None, b"", "the connection to this engine is closed", sent=False)
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        headers = _JSON if data is not None else None
        try:
            async with self._open().request(
                method,
                self.base_url + path,
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                body = await response.read()
                wait = _seconds(response.headers.get("Retry-After"))
                return Reply(response.status, body, retry_after_seconds=wait)
        except _NOT_SENT as error:
            return Reply(None, b"", _words(error), sent=False)
        except TimeoutError:
            return Reply(None, b"", f"no answer within {seconds:g} s")
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
            return Reply(None, b"", _words(error))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:  # not before: it belongs to the loop that runs now
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def every(*calls: Any) -> tuple[Reply, ...]:
    """Run calls side by side and return their replies in order."""
    return tuple(await asyncio.gather(*calls))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _seconds(header: str | None) -> float | None:
    """Return a Retry-After in seconds; its other form, a date, is as good as none here."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None
