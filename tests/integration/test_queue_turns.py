"""Turns of conversations under way: kept under the lease, told to the next holder, then gone."""

from __future__ import annotations

import pytest

from common.codec import compress, dumps
from common.keys import RunKeys
from common.queue import prompts
from common.records import Turn, Usage
from consumer.leases.keeper import Held
from consumer.leases.progress import Progress
from tests.support.queues import ONE, RUN, TWO
from tests.support.servers import eventually

KEYS = RunKeys(RUN)
TURN = Turn("one", None, [1], [2, 3], "stop", "ok", Usage(1, 2), seed=7)


async def save(bench, lease, packed=b"turns", worker=ONE):
    return await bench.queue.save_turns(worker, lease.item, lease.token, packed)


async def saved(bench, lease, worker=ONE):
    return await bench.queue.saved_turns(worker, lease.item, lease.token)


def kept(bench):
    return bench.sync.hgetall(KEYS.turns), int(bench.sync.hget(KEYS.counts, "turns_bytes") or 0)


async def test_turns_go_to_the_next_holder_and_to_nobody_else(bench):
    await bench.load(2)
    first, other = await bench.lease(2)
    assert await saved(bench, first) == b""
    assert await save(bench, first)
    assert await saved(bench, first) == b"turns"
    assert await saved(bench, other) == b""
    assert await saved(bench, first, worker=TWO) == b""
    await bench.queue.release(ONE, [(first.item, first.token)])
    assert not await save(bench, first, b"late")  # an old token keeps nothing
    assert await saved(bench, first) == b""
    (again,) = await bench.lease(1, worker=TWO)
    assert again.item == first.item
    assert await saved(bench, again, worker=TWO) == b"turns"


async def test_a_failed_try_and_an_expired_lease_leave_them(bench):
    await bench.load(1)
    (lease,) = await bench.lease(1)
    await save(bench, lease)
    await bench.expire()
    (lease,) = await bench.lease(1)
    await bench.fail([lease])
    assert kept(bench) == ({b"0": b"turns"}, 5)


@pytest.mark.parametrize("end", ["answer", "death", "cancel", "late answer"])
async def test_they_are_gone_with_the_items_end(bench, end):
    await bench.load(1)
    (lease,) = await bench.lease(1)
    await save(bench, lease)
    if end == "answer":
        await bench.complete([lease])
    elif end == "death":
        await bench.fail([lease], final=True)
    elif end == "cancel":
        await bench.runs.cancel(RUN)
    elif end == "late answer":
        await bench.expire()
        await bench.complete([lease])
    assert kept(bench) == ({}, 0)


async def test_all_of_a_run_together_are_bounded(bench, monkeypatch):
    monkeypatch.setattr(prompts, "ALL_TURNS_BYTES", 10)
    await bench.load(3)
    one, two, three = await bench.lease(3)
    assert await save(bench, one, b"12345")
    assert await save(bench, two, b"1234")
    assert not await save(bench, three, b"12")
    assert await save(bench, two, b"12345")  # in the place of its older ones
    assert not await save(bench, two, b"123456")
    assert kept(bench) == ({b"0": b"12345", b"1": b"12345"}, 10)
    await bench.complete([one])
    assert await save(bench, three, b"12")
    assert kept(bench)[1] == 7


async def test_a_holder_reads_back_what_the_one_before_had_finished(bench):
    info = await bench.load(1)
    (lease,) = await bench.lease(1)
    first = Progress(ONE)
    held = Held(info, lease, bench.queue)
    assert await first.load(held) == []
    first.save(held, [])
    first.save(held, [TURN])  # the newest counts
    await first.close()
    await eventually(lambda: kept(bench)[1] > 0)
    await bench.expire()
    (lease,) = await bench.lease(1, worker=TWO)
    assert await Progress(TWO).load(Held(info, lease, bench.queue)) == [TURN]


async def test_what_cannot_be_read_back_is_generated_again(bench):
    info = await bench.load(1)
    (lease,) = await bench.lease(1)
    held = Held(info, lease, bench.queue)
    for packed in (b"junk", compress(b'{"no": "list"}'), compress(dumps([{"content": 3}]))):
        await save(bench, lease, packed)
        assert await Progress(ONE).load(held) == []
    await bench.client.aclose()
    bench.sync.flushall()
    assert await Progress(ONE).load(held) == []  # another epoch: no error


async def test_turns_that_are_too_long_are_not_kept_and_harm_nothing(bench, monkeypatch):
    monkeypatch.setattr("consumer.leases.progress.TURNS_BYTES", 10)
    info = await bench.load(1)
    (lease,) = await bench.lease(1)
    progress = Progress(ONE)
    progress.save(Held(info, lease, bench.queue), [TURN])
    await progress.close()
    assert kept(bench) == ({}, 0)
