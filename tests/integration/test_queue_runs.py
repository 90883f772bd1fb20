"""What is promised of a run as a whole, one promise a test, on a real server."""

from __future__ import annotations

import pytest

from common.errors import EpochError, QueueError, RunClosedError
from common.ids import Epoch, Item, new_nonce
from common.keys import RunKeys
from common.queue.prompts import Outcome, PromptQueue
from common.queue.results import ResultStream
from common.queue.scripts import Scripts
from common.records import StreamEntry
from tests.support.queues import (
    ONE,
    RUN,
    TWO,
    manifest,
    places,
    set_bits,
)

KEYS = RunKeys(RUN)


# Runs as a whole


async def test_an_emptied_redis_is_noticed_by_every_call(bench):
    await bench.load()
    held = await bench.lease()
    bench.sync.flushdb()
    for call in (
        bench.lease(),
        bench.complete(held),
        bench.fail(held),
        bench.queue.release(ONE, [(0, held[0].token)]),
        bench.queue.extend(ONE, [(0, held[0].token)]),
        bench.queue.enqueue(0),
        bench.queue.enqueue_missing([0]),
        bench.queue.reap(),
        bench.stream.read("sink", 1, block_ms=1),
        bench.stream.commit([StreamEntry("1-1", Item(0), b"")]),
        bench.runs.sample(RUN),
        bench.runs.pause(RUN),
        bench.runs.reopen(RUN),
        bench.runs.cancel(RUN),
        bench.runs.close(RUN),
        bench.runs.requeue(RUN, items=[Item(0)]),
    ):
        with pytest.raises(EpochError):
            await call
    assert bench.sync.dbsize() <= 1  # nothing of ours was written


async def test_another_epoch_of_the_run_is_another_run(bench):
    await bench.load()
    stale = PromptQueue(bench.client, RUN, Epoch("0" * 16), bench.limits)
    with pytest.raises(EpochError):
        await stale.lease(ONE, 1, request=new_nonce())


async def test_a_run_closes_only_when_nothing_is_open(bench):
    await bench.load(items=2)
    assert not await bench.runs.close(RUN)
    first, second = await bench.lease(2)
    await bench.complete([first])
    await bench.fail([second], final=True)
    assert not await bench.runs.close(RUN)
    await bench.commit_all()
    assert await bench.runs.close(RUN)
    assert (await bench.counts()).settled
    assert await bench.lease() == []
    for call in (bench.complete([second]), bench.queue.enqueue(0), bench.runs.requeue(RUN)):
        with pytest.raises(RunClosedError):
            await call
    await bench.runs.reopen(RUN)
    assert await bench.runs.requeue(RUN) == 1
    assert [one.item for one in await bench.lease(9)] == [1]


async def test_a_cancelled_run_keeps_what_it_has_and_can_be_loaded_again(bench):
    await bench.load(2500)
    held = await bench.lease(5)
    await bench.complete(held[:2])
    await bench.fail(held[2:3], final=True)
    await bench.fail(held[3:4])
    await bench.runs.cancel(RUN)
    counts = await bench.counts()
    assert (counts.loaded, counts.generated, counts.dead, counts.open) == (3, 2, 1, 2)
    assert await bench.queue.extend(ONE, [(held[4].item, held[4].token)]) == [4]
    with pytest.raises(RunClosedError):
        await bench.complete(held[4:])

    await bench.runs.reopen(RUN)
    await bench.runs.requeue(RUN)
    for chunk in range(3):
        await bench.queue.enqueue(chunk)
    counts = await bench.counts()
    assert (counts.loaded, counts.queued) == (2500, 2498)
    assert sorted(places(bench.sync, RUN)) == list(range(2500))


async def test_a_held_run_says_why_and_goes_on_when_told(bench):
    await bench.load()
    await bench.runs.hold(RUN, "9 of 10 answers are empty")
    info = await bench.runs.get(RUN)
    assert (info.state, info.hold_reason) == ("held", "9 of 10 answers are empty")
    assert await bench.lease() == []
    assert await bench.runs.resume(RUN) == await bench.runs.pause(RUN) == "held"
    assert (await bench.runs.get(RUN)).state == "held"
    await bench.runs.accept(RUN)
    info = await bench.runs.get(RUN)
    assert (info.state, info.hold_reason) == ("open", "")
    assert len(await bench.lease()) == 1


async def test_a_sample_writes_nothing(bench):
    await bench.load()
    await bench.complete(await bench.lease(3))
    before = {key: bench.sync.dump(key) for key in bench.sync.scan_iter()}
    await bench.runs.sample(RUN)
    await bench.runs.list()
    await bench.runs.workers()
    await bench.runs.open_items(RUN)
    await bench.runs.failures(RUN, limit=5)
    assert {key: bench.sync.dump(key) for key in bench.sync.scan_iter()} == before


async def test_the_reasons_of_many_dead_letters_are_read_in_few_round_trips(bench):
    await bench.load(400)
    await bench.fail(await bench.lease(400), final=True)
    before = bench.sync.info("stats")["total_reads_processed"]
    failures = await bench.runs.failures(RUN, limit=300)
    reads = bench.sync.info("stats")["total_reads_processed"] - before
    assert len({one.item for one in failures}) == 300
    assert {(one.verdict, one.text) for one in failures} == {("empty", "why")}
    assert reads < 30
    assert len(await bench.runs.dead_items(RUN)) == 400


async def test_a_cancel_that_was_killed_is_finished_by_the_next_load(bench):
    info = await bench.load(2500)
    scripts = Scripts(bench.client, RUN, info.epoch)
    assert await scripts.call("cancel", 700) > 0  # one step; then the command was killed
    assert (await bench.counts()).state == "cancelled"
    await bench.runs.reopen(RUN)
    assert (await bench.counts()).loaded == 0
    assert [await bench.queue.enqueue(chunk) for chunk in range(3)] == [1000, 1000, 500]
    assert await scripts.call("cancel", 700, "rest") == 0  # another load was about to do the same
    await bench.runs.open(RUN)
    counts = await bench.counts()
    assert (counts.state, counts.loaded, counts.queued) == ("open", 2500, 2500)


async def test_dead_letters_stay_counted_when_a_cancelled_run_is_loaded_with_what_is_stored(bench):
    info = await bench.load(30)
    held = await bench.lease(6)
    await bench.fail(held[:2], final=True)
    await bench.complete(held[2:4])
    assert await bench.commit_all() == 2
    await bench.runs.cancel(RUN)
    await bench.runs.reopen(RUN)
    dead, lost, stored = held[0].item, held[4].item, [one.item for one in held[2:4]]
    bits = bytearray(4)  # storage holds more than Redis knows: one of them dead, one dropped
    for item in [*stored, dead, lost]:
        bits[item // 8] |= 0x80 >> item % 8
    for _ in range(2):
        await bench.runs.restore(RUN, info.epoch, committed=bytes(bits))
        counts = await bench.counts()
        assert (counts.loaded, counts.committed, counts.dead) == (5, 4, 1)
    assert await bench.queue.enqueue(0) == 25
    await bench.runs.open(RUN)
    counts = await bench.counts()
    assert (counts.state, counts.loaded, counts.queued) == ("open", 30, 25)


async def test_committed_items_that_storage_lost_are_queued_again(bench):
    info = await bench.load(20)
    held = await bench.lease(20)
    await bench.fail(held[:1], final=True)
    await bench.complete(held[1:])
    assert await bench.commit_all() == 19
    assert await bench.runs.close(RUN)
    lost = [Item(k) for k in range(16, 20)]
    assert await bench.runs.uncommit(RUN, info.epoch, []) == 0
    assert (await bench.counts()).state == "closed"
    assert await bench.runs.uncommit(RUN, info.epoch, lost) == 4
    assert await bench.runs.uncommit(RUN, info.epoch, lost) == 0
    counts = await bench.counts()
    assert (counts.state, counts.queued, counts.committed, counts.dead) == ("open", 4, 15, 1)
    await bench.complete(await bench.lease(20))
    assert await bench.commit_all() == 4
    assert await bench.runs.close(RUN)


async def test_open_items_sees_every_place(bench):
    await bench.load(2500)
    held = await bench.lease(5)
    await bench.complete(held[:2])
    await bench.fail(held[2:3], final=True)
    await bench.fail(held[3:4])
    await bench.commit_all()
    assert set_bits(await bench.runs.open_items(RUN))[:2500] == list(range(2500))


async def test_a_full_redis_takes_results_and_commits_but_no_prompts(bench):
    info = await bench.runs.create(manifest(2000))
    queue = bench.queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    bench.stream = ResultStream(bench.client, RUN, info.epoch, bench.limits)
    await queue.enqueue(0)
    bench.sync.config_set("maxmemory", 1)
    try:
        with pytest.raises(QueueError, match="full"):
            await queue.enqueue(1)
        assert await bench.complete(await bench.lease(3)) == [Outcome.FIRST] * 3
        assert await bench.commit_all() == 3
    finally:
        bench.sync.config_set("maxmemory", 0)
    assert await queue.enqueue(1) == 1000
    assert (await bench.counts()).committed == 3


async def test_a_full_redis_is_told_by_a_sink_what_is_committed(bench):
    info = await bench.runs.create(manifest(8))
    bench.sync.config_set("maxmemory", 1)
    try:
        assert await bench.runs.restore(RUN, info.epoch, committed=b"\xf0") == 4
    finally:
        bench.sync.config_set("maxmemory", 0)
    assert (await bench.counts()).committed == 4


async def test_runs_are_listed_by_priority_and_then_by_age(bench):
    for name, priority in (("older", 0), ("newer", 0), ("urgent", 5)):
        await bench.runs.create(manifest(1, run=name), priority=priority)
    assert [info.run for info in await bench.runs.list()] == ["urgent", "older", "newer"]


async def test_calls_count_for_a_registered_worker_only(bench):
    await bench.load()
    record = f"rq:worker:{ONE}"
    bench.sync.hset(record, mapping={"birth": "", "queues": RUN, "state": "busy", "pid": 7})
    bench.sync.sadd("rq:workers", record)
    await bench.complete(await bench.lease(3))
    await bench.fail(await bench.lease(2))
    await bench.complete(await bench.lease(1, TWO), TWO)
    await bench.runs.set_gauges(ONE, {"tokens_per_second": 3.5}, 60)
    (worker,) = await bench.runs.workers()
    assert (worker.name, worker.finished, worker.failed, worker.pid) == (ONE, 3, 2, 7)
    assert worker.gauges == {"tokens_per_second": "3.5"}
    assert not bench.sync.exists(f"rq:worker:{TWO}")
