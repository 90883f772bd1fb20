"""The clock of Redis' host jumps: leases end early or late, and nothing is lost or doubled.

All that scripts compare are stored times with that clock, so moving the stored times one way is
the clock's jump the other way; that is how it is tested here.
"""

from __future__ import annotations

import pytest
import structlog

from common.ids import job_id, new_nonce
from common.keys import STARTED, RunKeys
from common.queue.prompts import PromptQueue, QueueLimits
from common.records import Failure, Verdict
from tests.support.queues import ONE, RUN, TWO, let_time_pass

pytestmark = pytest.mark.row("C11")
KEYS = RunKeys(RUN)
DAY = 86_400


async def test_forward_by_a_day_ends_leases_early_and_their_holders_take_them_up_again(bench):
    await bench.load()
    held = await bench.lease(3)
    await bench.fail(await bench.lease(1))
    let_time_pass(bench.sync, RUN, DAY)
    reaped = await bench.queue.reap()
    assert (reaped.expired, reaped.promoted) == (3, 1)
    assert await bench.queue.extend(ONE, [(one.item, one.token) for one in held]) == []
    assert (await bench.counts()).leased == 3


async def test_back_by_a_day_leaves_nobody_waiting_for_a_day(bench):
    """A dead consumer's lease, a retry, and the reaper's own lock would live until tomorrow."""
    await bench.load()
    await bench.lease(3)
    await bench.fail(await bench.lease(1, TWO), worker=TWO)
    let_time_pass(bench.sync, RUN, -DAY - 3600)
    bench.sync.set(KEYS.reap_lock, "a reaper that died", ex=DAY)
    with structlog.testing.capture_logs() as logs:
        assert (await bench.queue.reap()).expired == 0
    assert [(log["event"], log["set_anew"]) for log in logs] == [
        ("the clock of Redis was set back", 4)
    ]
    let_time_pass(bench.sync, RUN, bench.limits.lease_seconds + 1)
    reaped = await bench.queue.reap()
    assert (reaped.expired, reaped.promoted) == (3, 1)
    counts = await bench.counts()
    assert (counts.queued, counts.leased, counts.waiting) == (20, 0, 0)


async def test_back_by_a_day_a_living_consumer_keeps_its_leases(bench):
    await bench.load()
    held = [(one.item, one.token) for one in await bench.lease(3)]
    let_time_pass(bench.sync, RUN, -DAY)
    await bench.queue.reap()
    assert await bench.queue.extend(ONE, held) == []
    assert (await bench.queue.reap()).expired == 0
    assert int(bench.sync.hget(STARTED, "since")) > 0
    counts = await bench.counts()
    assert counts.leased == 3
    assert counts.since_lease >= 0


@pytest.mark.parametrize("back", [30, 50 * 60, 6 * 3600])
async def test_set_back_by_less_than_a_day_nothing_ends_later_than_what_is_in_force(bench, back):
    """Neither a dead consumer's lease nor a retry waits for as long as the clock was set back."""
    await bench.load()
    await bench.lease(3)
    await bench.fail(await bench.lease(1, TWO), worker=TWO)
    let_time_pass(bench.sync, RUN, -back)
    with structlog.testing.capture_logs() as logs:
        await bench.queue.reap()
    assert [log["set_anew"] for log in logs] == [4]
    now = bench.sync.time()[0]
    ends = [score / 1000 for _, score in bench.sync.zrange(KEYS.lease, 0, -1, withscores=True)]
    assert max(ends) <= now + bench.limits.lease_seconds + 2
    assert bench.sync.zrange(KEYS.scheduled, 0, 0, withscores=True)[0][1] <= now + 1
    assert (await bench.queue.reap()).promoted == 1
    let_time_pass(bench.sync, RUN, bench.limits.lease_seconds + 2)
    assert (await bench.queue.reap()).expired == 3


@pytest.mark.parametrize("back", [0, 1800, 2 * DAY])
async def test_a_longer_lease_of_another_consumer_is_not_cut_short(bench, back):
    """Whoever reaps may have another lease length, and come at any moment of the longer one."""
    info = await bench.load()
    hours = QueueLimits(lease_seconds=3 * 3600)
    other = PromptQueue(bench.client, RUN, info.epoch, hours)
    (held,) = await other.lease(TWO, 1, request=new_nonce())
    await bench.queue.reap()
    let_time_pass(bench.sync, RUN, 2 * 3600)
    await bench.queue.reap()
    let_time_pass(bench.sync, RUN, -back)
    await bench.queue.reap()
    left = bench.sync.zscore(KEYS.lease, held.item) / 1000 - bench.sync.time()[0]
    assert 3600 - 5 <= left <= 3600 + 5
    assert await other.extend(TWO, [(held.item, held.token)]) == []
    with structlog.testing.capture_logs() as logs:
        await bench.queue.reap()
    assert logs == []
    left = bench.sync.zscore(KEYS.lease, held.item) / 1000 - bench.sync.time()[0]
    assert left >= 3 * 3600 - 5


async def test_a_longer_wait_of_another_consumer_is_not_cut_short(bench):
    info = await bench.load()
    patient = QueueLimits(retry_base_seconds=3600, retry_cap_seconds=7200)
    other = PromptQueue(bench.client, RUN, info.epoch, patient)
    (one,) = await other.lease(TWO, 1, request=new_nonce())
    await other.fail(TWO, [Failure(one.item, one.token, Verdict.EMPTY, "why", charged=True)])
    due = bench.sync.zscore(KEYS.scheduled, job_id(RUN, one.item))
    for _ in range(2):
        with structlog.testing.capture_logs() as logs:
            await bench.queue.reap()
        assert logs == []
    assert bench.sync.zscore(KEYS.scheduled, job_id(RUN, one.item)) == due


async def test_set_back_with_more_retries_than_a_visit_moves_the_reaper_goes_on(bench):
    await bench.load(250)
    await bench.fail(await bench.lease(250))
    let_time_pass(bench.sync, RUN, -6 * 3600)
    promoted = 0
    for _ in range(9):
        reaped = await bench.queue.reap()
        promoted += reaped.promoted
        if not reaped.more:
            break
    promoted += (await bench.queue.reap()).promoted
    assert promoted == 250


async def test_set_back_what_stock_workers_left_behind_comes_back_all_the_same(bench):
    """Its two marks: when an id was first seen half taken, and how long a stock job may run."""
    await bench.load(3)
    bench.sync.lmove(KEYS.queue, KEYS.intermediate)
    job = bench.sync.lpop(KEYS.queue).decode()
    bench.sync.zadd(KEYS.wip, {f"{job}:execution": bench.sync.time()[0] + 90})
    bench.sync.hset(f"{KEYS.job_prefix}1", "status", "started")
    await bench.queue.reap()
    let_time_pass(bench.sync, RUN, -6 * 3600)
    swept = 0
    for seconds in (0, 61, 601):  # a lease's length after the jump nothing is taken back
        let_time_pass(bench.sync, RUN, seconds)
        swept += (await bench.queue.reap()).swept
    assert swept == 2
    assert (await bench.counts()).queued == 3
