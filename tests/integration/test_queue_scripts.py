"""What producers and consumers are promised, one promise a test, on a real server."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files

import pytest
from rq.job import Job
from rq.serializers import JSONSerializer

from common.errors import ConflictError, EpochError, QueueError
from common.ids import Item, job_id, new_epoch, new_nonce
from common.keys import RunKeys
from common.queue.failures import FailureInfo
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.scripts import script_names
from tests.support.queues import (
    ONE,
    RUN,
    TWO,
    let_time_pass,
    manifest,
)

KEYS = RunKeys(RUN)


# Lua files


@pytest.mark.parametrize("name", script_names())
def test_each_script_says_what_it_does_in_one_form(name):
    text = files("common.queue").joinpath(f"lua/{name}.lua").read_text()
    shebang, *lines = text.splitlines()
    assert re.fullmatch(r"#!lua( flags=(allow-oom|no-writes))?", shebang)
    header = []
    for line in lines:
        if not line.startswith("--"):
            break
        header.append(line)
    named = [line.split()[1] for line in header if re.match(r"-- [A-Z][A-Za-z]+  ", line)]
    assert named == ["KEYS", "ARGV", "Returns", "Idempotent"]
    assert re.match(r"-- [A-Z][a-z-]+ .+", header[0])


def test_no_lua_file_outgrows_one_screen_and_all_stay_within_the_line():
    for path in files("common.queue").joinpath("lua").iterdir():
        lines = path.read_text().splitlines()
        assert len(lines) <= 80, path.name
        assert all(len(line) <= 100 for line in lines), path.name


# Producers


async def test_dead_letters_are_put_back_as_they_were_and_nothing_that_is_anywhere(bench):
    info = await bench.runs.create(manifest(30))
    queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    await bench.runs.restore(RUN, info.epoch, committed=bytes([0x80]))
    letters = [FailureInfo(Item(n), "too_long", f"text {n}", "gpu1", 1.75e9 + n) for n in range(3)]
    assert await queue.bury_again(letters) == 2  # the first is committed
    assert await queue.bury_again(letters) == 0
    assert await queue.enqueue(0) == 27
    await bench.runs.open(RUN)
    assert await queue.bury_again([replace(letters[0], item=Item(9))]) == 0  # it is queued
    counts = await bench.counts()
    assert (counts.state, counts.dead, counts.queued, counts.committed) == ("open", 2, 27, 1)
    assert sorted(await bench.runs.failures(RUN, limit=9), key=lambda one: one.item) == letters[1:]
    state = await bench.runs.trace(RUN, Item(1))
    assert (state.place, state.ended, state.attempts_used) == ("dead", 1.75e9 + 1, 0)
    assert await bench.runs.requeue(RUN) == 2
    assert (await bench.counts()).queued == 29


async def test_a_renewed_run_is_another_for_all_who_knew_it(bench):
    info = await bench.load()
    new = new_epoch()
    assert await bench.queue.renew(new) == new
    assert await bench.queue.renew(new_epoch()) == new  # only the epoch that it knew is replaced
    with pytest.raises(EpochError):
        await bench.lease()
    assert (await bench.runs.get(RUN)).epoch == new != info.epoch
    assert (await bench.counts()).queued == 20


async def test_a_chunk_is_enqueued_once_however_often_it_is_sent(bench):
    await bench.load(1500)
    assert await bench.queue.enqueue(0) == 0
    assert await bench.queue.enqueue(1) == 0
    with pytest.raises(QueueError):
        await bench.queue.enqueue(2)
    assert bench.sync.llen(KEYS.queue) == 1500
    assert (await bench.counts()).loaded == 1500


async def test_a_job_has_three_fields_and_no_long_one(bench):
    await bench.load()
    fields = bench.sync.hgetall(f"{KEYS.job_prefix}3")
    assert set(fields) == {b"data", b"origin", b"status"}
    assert max(len(value) for value in fields.values()) <= 64
    job = Job.fetch(job_id(RUN, 3), connection=bench.sync, serializer=JSONSerializer)
    assert job.func.__module__ == "common.queue"


async def test_the_same_run_is_returned_as_it_is_and_another_is_refused(bench):
    info = await bench.load()
    again = await bench.runs.create(manifest(20), priority=9)
    assert (again.epoch, again.state, again.priority) == (info.epoch, "open", 0)
    with pytest.raises(ConflictError):
        await bench.runs.create(manifest(20, fingerprint="e" * 64))


async def test_what_was_committed_before_a_total_loss_is_not_enqueued(bench):
    info = await bench.runs.create(manifest(1010))
    await bench.runs.restore(RUN, info.epoch, committed=bytes([0b10100000]) + bytes(125) + b"\x40")
    bench.queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    assert await bench.queue.enqueue(0) == 998
    assert await bench.queue.enqueue(1) == 9
    counts = await bench.counts()
    assert (counts.loaded, counts.committed) == (1010, 3)
    # The same again, and one more, while the run goes on: as a sink's commit does it.
    await bench.runs.restore(RUN, info.epoch, committed=bytes([0b11100000]))
    counts = await bench.counts()
    assert (counts.committed, counts.queued) == (4, 1006)


async def test_a_resumed_run_is_loading_until_all_of_it_is_loaded(bench):
    info = await bench.runs.create(manifest(1500))
    queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    await queue.enqueue(0)
    await bench.runs.pause(RUN)
    assert await queue.lease(ONE, 1, request=new_nonce()) == []
    await bench.runs.resume(RUN)
    assert (await bench.runs.get(RUN)).state == "loading"
    assert len(await queue.lease(ONE, 1, request=new_nonce())) == 1
    await queue.enqueue(1)
    await bench.runs.open(RUN)
    assert (await bench.runs.get(RUN)).state == "open"


# Leases


async def test_a_lost_answer_to_lease_is_given_again(bench):
    await bench.load()
    request = new_nonce()
    first = await bench.queue.lease(ONE, 5, request=request)
    assert await bench.queue.lease(ONE, 5, request=request) == first
    assert (await bench.counts()).leased == 5


async def test_nothing_is_leased_over_the_high_water_marks(bench):
    limits = QueueLimits(stream_entries=2)
    await bench.load(limits=limits)
    await bench.complete(await bench.lease(2))
    assert await bench.lease() == []
    assert await bench.commit_all() == 2
    assert len(await bench.lease()) == 1


async def test_the_bytes_of_the_stream_bound_it_too(bench):
    await bench.load(limits=QueueLimits(stream_bytes=8))
    await bench.complete(await bench.lease(2))
    assert (await bench.counts()).stream_bytes == 8
    assert await bench.lease() == []
    await bench.commit_all()
    assert (await bench.counts()).stream_bytes == 0
    assert len(await bench.lease()) == 1


async def test_an_expired_lease_goes_back_to_the_head_with_a_delivery_counted(bench):
    await bench.load()
    held = await bench.lease(3)
    assert (await bench.expire()).expired == 3
    again = await bench.lease(3, TWO)
    assert [(one.item, one.attempt, one.delivery) for one in again] == [
        (one.item, 1, 2) for one in held
    ]
    assert await bench.queue.extend(ONE, [(one.item, one.token) for one in held]) == [0, 1, 2]


async def test_extend_takes_up_an_expired_lease_that_nobody_has_had_since(bench):
    await bench.load()
    (held,) = await bench.lease()
    await bench.expire()
    assert await bench.queue.extend(ONE, [(held.item, held.token)]) == []
    counts = await bench.counts()
    assert (counts.leased, counts.queued) == (1, 19)
    await bench.expire()
    assert (await bench.lease())[0].delivery == 2


async def test_extend_does_not_take_up_what_its_worker_gave_back(bench):
    await bench.load()
    held = await bench.lease(2)
    await bench.queue.release(ONE, [(held[0].item, held[0].token)])
    await bench.fail(held[1:])
    assert await bench.queue.extend(ONE, [(one.item, one.token) for one in held]) == [0, 1]


async def test_leases_live_for_a_while_after_a_start_of_redis(bench):
    await bench.load()
    await bench.lease(3)
    bench.sync.hset("genq:started", "run_id", "of the process before")
    bench.sync.zadd(KEYS.lease, {0: 1, 1: 1, 2: 1})
    assert (await bench.queue.reap()).expired == 0
    assert (await bench.expire()).expired == 3


async def test_one_reaper_at_a_time(bench):
    info = await bench.load()
    await bench.lease(3)
    let_time_pass(bench.sync, RUN, 100)
    other = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    assert (await bench.queue.reap()).expired == 3
    await bench.lease(3)
    bench.sync.zadd(KEYS.lease, {0: 1, 1: 1, 2: 1})
    assert (await other.reap()).expired == 0
    assert (await bench.queue.reap()).expired == 3


async def test_the_reaper_moves_at_most_a_hundred_a_call(bench):
    await bench.load(250)
    await bench.lease(250)
    let_time_pass(bench.sync, RUN, 100)
    reaped = [await bench.queue.reap() for _ in range(3)]
    assert [(one.expired, one.more) for one in reaped] == [(100, True), (100, True), (50, False)]


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
async def test_no_retry_waits_longer_than_the_cap(bench, monkeypatch, chance):
    monkeypatch.setattr("common.queue.prompts.random.random", lambda: chance)
    limits = QueueLimits(retry_base_seconds=10, retry_cap_seconds=35)
    await bench.load(items=1, limits=limits, attempts=9)
    waits = []
    for _ in range(4):
        await bench.fail(await bench.lease())
        now, due = bench.sync.time(), bench.sync.zrange(KEYS.scheduled, 0, 0, withscores=True)
        waits.append(due[0][1] - now[0] - now[1] / 1e6)
        let_time_pass(bench.sync, RUN, 36)
        assert (await bench.queue.reap()).promoted == 1
    steps = [min(35, 1.5 * step) * (0.5 + chance) / 1.5 for step in (10, 20, 40, 80)]
    assert waits == [pytest.approx(step, abs=2) for step in steps]
    assert max(waits) <= 35


async def test_release_keeps_the_order_and_charges_nothing(bench):
    await bench.load()
    held = await bench.lease(4)
    pairs = [(one.item, one.token) for one in held]
    assert await bench.queue.release(ONE, pairs) == 4
    assert await bench.queue.release(ONE, pairs) == 4
    again = await bench.lease(4)
    assert [(one.item, one.delivery) for one in again] == [(0, 1), (1, 1), (2, 1), (3, 1)]


async def test_foreign_ids_are_kept_aside(bench):
    await bench.load(items=2)
    bench.sync.lpush(KEYS.queue, "somebody-elses", f"{RUN}-2", f"{RUN}-01")
    assert [one.item for one in await bench.lease(9)] == [0, 1]
    assert bench.sync.llen(KEYS.foreign) == 3
    assert (await bench.counts()).foreign == 3
