"""The HTTP session against real, broken and absent servers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from consumer.engine.http import EngineHttp
from tests.support.fake_engine import free_port


@asynccontextmanager
async def server(answer):
    """A TCP server that runs ``answer(reader, writer)`` for each connection."""
    requests = []

    async def serve(reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                requests.append(head)
                await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    port = listener.sockets[0].getsockname()[1]
    async with listener:
        http = EngineHttp(f"http://127.0.0.1:{port}/", "the-key")
        try:
            yield http, requests
        finally:
            await http.close()


def plain(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_a_reply_has_status_body_and_the_key_was_sent():
    async def answer(reader, writer):
        writer.write(plain(b"hello", "503 Busy", "Retry-After: 7\r\n"))

    async with server(answer) as (http, requests):
        reply = await http.get("/x", 5)
        assert (reply.status, reply.body, reply.retry_after_seconds) == (503, b"hello", 7.0)
        assert not reply.ok
        assert b"Authorization: Bearer the-key" in requests[0]


async def test_nobody_listening_is_a_reply_that_says_nothing_was_sent():
    http = EngineHttp(f"http://127.0.0.1:{free_port()}")
    reply = await http.post("/generate", {}, 5)
    await http.close()
    assert (reply.status, reply.sent) == (None, False)
    assert "Connect" in reply.error


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        b"\x00\xff garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    ],
)
async def test_a_broken_answer_is_a_reply_and_the_post_is_not_repeated(sent):
    async def answer(reader, writer):
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with server(answer) as (http, requests):
        reply = await http.post("/generate", {"a": 1}, 5)
        assert (reply.status, reply.sent) == (None, True)
        assert reply.error
        assert len(requests) == 1


async def test_a_connection_that_dies_while_kept_alive_does_not_send_a_post_twice():
    async def answer(reader, writer):
        if len(all_requests) == 1:
            writer.write(plain(b"first"))
        else:
            writer.close()

    async with server(answer) as (http, all_requests):
        assert (await http.post("/a", {}, 5)).body == b"first"
        assert (await http.post("/b", {}, 5)).status is None
        assert len(all_requests) == 2


async def test_the_deadline_ends_a_call_that_gets_no_answer():
    async def answer(reader, writer):
        await asyncio.sleep(30)  # lasts: an answer, longer than anybody waits

    async with server(answer) as (http, _):
        reply = await http.post("/generate", {}, 0.1)
        assert reply.status is None
        assert "no answer within 0.1 s" in reply.error


async def test_closing_ends_the_calls_in_progress_and_refuses_new_ones():
    started = asyncio.Event()

    async def answer(reader, writer):
        started.set()
        await asyncio.sleep(30)  # lasts: an answer, longer than anybody waits

    async with server(answer) as (http, _):
        call = asyncio.create_task(http.post("/generate", {}, 60))
        await started.wait()
        await http.close()
        assert (await asyncio.wait_for(call, 5)).status is None
        assert not (await http.post("/generate", {}, 5)).sent


async def test_cancelling_closes_the_connection_so_that_the_engine_gives_up():
    started, closed = asyncio.Event(), asyncio.Event()

    async def answer(reader, writer):
        started.set()
        while await reader.read(100):
            pass
        closed.set()

    async with server(answer) as (http, _):
        call = asyncio.create_task(http.post("/generate", {}, 60))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(closed.wait(), 5)


async def test_many_requests_run_at_once():
    together = asyncio.Barrier(300)

    async def answer(reader, writer):
        await together.wait()
        writer.write(plain(b"{}"))

    async with server(answer) as (http, _):
        replies = await asyncio.gather(*(http.post("/generate", {}, 30) for _ in range(300)))
        assert all(reply.ok for reply in replies)
        assert http.answered == 300
