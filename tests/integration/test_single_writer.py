"""Single-writer mode: a lease keeps the second sink out, and one that is lost stops the first."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock

import pytest

from common.errors import ConflictError, Exit, QueueAwayError, StoreError
from common.keys import SINK_LOCK
from common.objectstore import Created
from common.redis_client import open_client
from consumer.sink import single
from consumer.sink.single import SingleWriterStore, WriterLease
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
    assert isinstance(lease.lost, ConflictError)


async def test_a_renewal_that_redis_did_not_take_is_tried_again(redis, monkeypatch):
    lease, stop, failed = WriterLease(redis), asyncio.Event(), asyncio.Event()
    renewed = asyncio.Event()
    await lease.take()
    real = lease._lock.reacquire

    async def once_away():
        if not failed.is_set():
            failed.set()
            raise ConnectionError("reset by peer")
        await real()
        renewed.set()

    monkeypatch.setattr(lease._lock, "reacquire", once_away)
    keeping = asyncio.create_task(lease.keep(stop))
    await asyncio.wait_for(renewed.wait(), 20)
    assert failed.is_set()
    assert not stop.is_set()
    assert lease.lost is None
    stop.set()
    await keeping


async def test_one_that_cannot_be_renewed_in_time_stops_the_sink_with_a_cause(redis, monkeypatch):
    lease, stop = WriterLease(redis), asyncio.Event()
    await lease.take()
    monkeypatch.setattr(lease._lock, "reacquire", AsyncMock(side_effect=ConnectionError("away")))
    await asyncio.wait_for(lease.keep(stop), 20)
    assert isinstance(lease.lost, QueueAwayError)
    assert lease.lost.exit_code == Exit.QUEUE


async def test_no_part_is_begun_without_the_lease(redis, store):
    lease, stop = WriterLease(redis), asyncio.Event()
    only = SingleWriterStore(store, lease)
    with pytest.raises(StoreError, match="is not written"):
        only.create("early", b"x")
    await lease.take()
    assert only.create("part", b"x") is Created.CREATED
    await redis.set(SINK_LOCK, b"somebody else")
    await asyncio.wait_for(lease.keep(stop), 20)
    with pytest.raises(StoreError, match="another sink may be at work"):
        only.create("late", b"x")
    assert only.create("part", b"y") is Created.EXISTS
    assert [found.key for found in store.list("")] == ["part"]


async def test_no_part_is_begun_where_looking_for_it_took_longer_than_the_lease(
    redis, store, monkeypatch
):
    lease = WriterLease(redis)
    await lease.take()
    look = store.stat

    def slow(key):
        monkeypatch.setattr(single, "LEASE_SECONDS", 0.0)  # as if so much time went by
        return look(key)

    monkeypatch.setattr(store, "stat", slow)
    with pytest.raises(StoreError, match="not renewed in time"):
        SingleWriterStore(store, lease).create("part", b"x")
    assert look("part") is None
