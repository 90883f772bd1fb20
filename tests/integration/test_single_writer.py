"""Single-writer mode: a lease keeps the second sink out, and one that is lost stops the first."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import ConflictError
from common.keys import SINK_LOCK
from common.redis_client import open_client
from consumer.sink import single
from consumer.sink.single import WriterLease
from tests.support.servers import eventually


@pytest.fixture
async def redis(settings, monkeypatch):
    monkeypatch.setattr(single, "LEASE_SECONDS", 2.0)
    client = open_client(settings, name="tests")
    yield client
    await client.aclose()


async def test_a_second_sink_stays_out_while_the_first_renews(redis):
    first, second = WriterLease(redis), WriterLease(redis)
    stop = asyncio.Event()
    await first.take()
    keeping = asyncio.create_task(first.keep(stop))
    with pytest.raises(ConflictError, match="single-writer"):
        await second.take()
    stop.set()
    await keeping
    await first.give_back()
    await second.take()


async def test_the_lease_of_a_killed_sink_is_waited_for(redis):
    await WriterLease(redis).take()
    await WriterLease(redis).take()


async def test_a_lost_lease_stops_the_sink(redis):
    lease = WriterLease(redis)
    await lease.take()
    stop = asyncio.Event()
    keeping = asyncio.create_task(lease.keep(stop))
    await redis.set(SINK_LOCK, b"somebody else")
    await eventually(stop.is_set, 20)
    await keeping
    await lease.give_back()
    assert await redis.get(SINK_LOCK) == b"somebody else"
