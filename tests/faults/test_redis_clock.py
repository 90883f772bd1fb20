"""The clock of Redis' host jumps: leases end early or late, and nothing is lost or doubled.

All that scripts compare are stored times with that clock, so moving the stored times one way is
the clock's jump the other way; that is how it is tested here.
"""

from __future__ import annotations

import pytest
import structlog

from common.keys import STARTED, RunKeys
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
