"""What Redis tells of one item: in every place, at any depth, and without changing a thing."""

from __future__ import annotations

import pytest

from common.errors import EpochError, QueueError
from common.ids import Item, run_name
from common.keys import RunKeys
from common.queue.item_state import NEAR_ITEMS
from common.records import Verdict
from tests.support.queues import ONE, RUN, TWO, let_time_pass

KEYS = RunKeys(RUN)


async def test_an_item_is_found_in_every_place_and_nothing_is_changed(bench):
    await bench.load(items=1500)
    held, spoiled, dead, answered, stored, taken = await bench.lease(6)
    await bench.fail([spoiled])
    await bench.fail([dead], Verdict.TOO_LONG, final=True)
    await bench.complete([stored])
    await bench.commit_all()
    await bench.complete([answered])
    bench.sync.lmove(KEYS.queue, KEYS.intermediate, "LEFT", "RIGHT")  # as a stock worker does
    await bench.queue.release(ONE, [(taken.item, taken.token)])
    await bench.stream.read("sink-a", 1, block_ms=None)
    before = {key: bench.sync.dump(key) for key in bench.sync.scan_iter()}

    found = {n: await bench.runs.trace(RUN, Item(n)) for n in range(9)}
    # Its clock moves on; the sample above is of all keys.
    assert {key: bench.sync.dump(key) for key in bench.sync.scan_iter()} == before
    places = [found[n].place for n in (*range(7), 8)]
    assert places == [
        *("leased", "waiting", "dead", "generated", "committed", "queued", "taking"),
        "queued",
    ]
    one = found[held.item]
    assert (one.holder, one.worker, one.attempts_used, one.attempts) == (ONE, ONE, 0, 3)
    assert 0 < one.leased_until - one.at <= bench.limits.lease_seconds
    assert abs(one.started - one.at) < 60
    one = found[spoiled.item]
    assert (one.attempts_used, [(f.worker, f.text) for f in one.failures]) == (1, [(ONE, "why")])
    assert one.due > one.at
    one = found[dead.item]
    assert (one.dead_class, one.failures[-1].text) == ("too_long", "why")
    one = found[answered.item]
    assert (one.result.verdict, one.result.payload, one.result.sink) == ("ok", b"text", "sink-a")
    assert one.result.reads == 1
    assert (found[taken.item].ahead, found[8].ahead) == (0, 2)
    assert found[stored.item].ended is not None


async def test_what_happened_to_an_item_that_kills_engines_is_told(bench):
    await bench.load(items=3)
    (one,) = await bench.lease()
    await bench.fail([one], Verdict.ENGINE_DOWN, charged=False, engine_died=True)
    state = await bench.runs.trace(RUN, one.item)
    assert (state.place, state.deliveries_unfinished, state.engine_deaths) == ("queued", 1, 1)
    (one,) = await bench.lease(worker=TWO)
    let_time_pass(bench.sync, RUN, bench.limits.lease_seconds + 1)
    await bench.queue.reap()
    state = await bench.runs.trace(RUN, one.item)
    assert (state.place, state.taken_from, state.deliveries_unfinished) == ("queued", TWO, 2)


async def test_a_place_deep_in_a_long_queue_is_found_without_a_walk(bench):
    """Counted in the server's own time: a walk would take as long as the queue is."""
    items = 6 * NEAR_ITEMS
    await bench.load(items=items)
    await bench.lease(10)
    for n in (10, NEAR_ITEMS + 20, items // 2, items - 1):
        assert (await bench.runs.trace(RUN, Item(n))).ahead == n - 10
    # Retries that fell due lie behind all others, where an end of the queue is looked through.
    bench.sync.lrem(KEYS.queue, 1, f"{RUN}-{items // 2}")
    bench.sync.rpush(KEYS.queue, f"{RUN}-{items // 2}")
    assert (await bench.runs.trace(RUN, Item(items // 2))).ahead == items - 11
    # In the middle of foreign ids it cannot be halved out; it is still said to be queued.
    bench.sync.lrem(KEYS.queue, 1, f"{RUN}-{items // 2 + 1}")
    bench.sync.linsert(KEYS.queue, "BEFORE", f"{RUN}-{NEAR_ITEMS + 50}", f"{RUN}-{items // 2 + 1}")
    lost = await bench.runs.trace(RUN, Item(items // 2 + 1))
    assert (lost.place, lost.ahead) == ("queued", None)


async def test_an_old_result_whose_job_has_expired_is_found_among_the_oldest(bench):
    await bench.load()
    await bench.complete(await bench.lease(2))
    bench.sync.delete(f"{KEYS.job_prefix}1")
    assert (await bench.runs.trace(RUN, Item(1))).result.completion_tokens == 1


async def test_what_is_not_there_is_said(bench):
    await bench.load()
    with pytest.raises(QueueError, match="no such item"):
        await bench.runs.trace(RUN, Item(20))
    with pytest.raises(EpochError):
        await bench.runs.trace(run_name("other"), Item(0))
    await bench.runs.cancel(RUN)
    assert (await bench.runs.trace(RUN, Item(3))).place == "dropped"


async def test_priorities_change_the_order_of_runs_and_nothing_else(bench):
    await bench.load()
    before = bench.sync.hgetall(KEYS.meta)
    assert await bench.runs.set_priority(RUN, -5) == 0
    assert await bench.runs.set_priority(RUN, -5) == -5
    assert bench.sync.hgetall(KEYS.meta) == {**before, b"priority": b"-5"}
    with pytest.raises(EpochError):
        await bench.runs.set_priority(run_name("other"), 1)
    assert bench.sync.keys("*other*") == []


async def test_the_time_of_cards_is_counted_while_they_hold_items(bench):
    await bench.load()
    held = [(one.item, one.token) for one in await bench.lease(2)]

    def ago(worker, operation, seconds):
        """Let the worker's last call of a kind be so long ago."""
        field = f"{worker}:{operation}"
        request, at, *rest = bench.sync.hget(KEYS.answers, field).decode().split(" ", 2)
        bench.sync.hset(
            KEYS.answers, field, " ".join([request, str(int(at) - seconds * 1000), *rest])
        )

    async def counted(seconds):
        return abs((await bench.counts()).gpu_seconds - seconds) < 9  # the machine may be slow

    ago(ONE, "lease", 100)
    assert await bench.queue.extend(ONE, held) == []  # the first: from its last lease
    assert await counted(100)
    ago(ONE, "extend", 100)
    await bench.queue.extend(ONE, held)
    await bench.queue.extend(ONE, held)  # at once again, as after a lost answer
    assert await counted(200)
    ago(ONE, "extend", 1000)
    ago(ONE, "lease", 1000)
    await bench.queue.extend(ONE, held)  # it was away in between
    assert await counted(200)
    await bench.queue.extend(TWO, held)  # another's leases
    assert await counted(200)


async def test_what_ended_lately_is_counted_by_spans(bench):
    await bench.load()
    await bench.complete(await bench.lease(5))
    let_time_pass(bench.sync, RUN, 100)
    await bench.complete(await bench.lease(3))
    at = (await bench.counts()).at
    counts, oldest = await bench.runs.ended_since(RUN, at, [60, 400])
    assert counts == [3, 8]
    assert 100 <= oldest < 130
