"""What it costs to read which runs there are, every second, where most of them are over."""

from __future__ import annotations

import pytest

from common.errors import QueueError
from common.ids import RunName
from common.keys import RunKeys
from common.queue.run_list import REST_SECONDS, RunList
from tests.support.queues import RUN, async_client, manifest

MANY = 600  # more than fit into one round trip
LATER = REST_SECONDS + 0.01


class Listed:
    """A list of runs under a clock that is set by hand."""

    def __init__(self, bench):
        self.bench = bench
        self.now = 0.0
        self.list = RunList(bench.client, clock=lambda: self.now)

    async def states(self):
        return {info.run: info.state for info in await self.list.look()}

    async def costs(self):
        """What a look costs: runs that are read, round trips."""
        stats = ("commandstats", "stats")
        before = [self.bench.sync.info(part) for part in stats]
        await self.list.look()
        after = [self.bench.sync.info(part) for part in stats]
        read = [part[0].get("cmdstat_hgetall", {"calls": 0})["calls"] for part in (before, after)]
        trips = [part[1]["total_reads_processed"] for part in (before, after)]
        return read[1] - read[0], trips[1] - trips[0]


@pytest.fixture
def listed(bench):
    return Listed(bench)


async def test_runs_that_are_over_are_read_now_and_then_and_in_few_round_trips(listed, bench):
    for n in range(MANY):
        await bench.runs.create(manifest(1, run=RunName(f"run-{n}")))
        await bench.runs.cancel(RunName(f"run-{n}"))
    await bench.load()
    read, trips = await listed.costs()
    assert read == MANY + 1
    assert trips < 30  # a long request comes in several reads
    assert await listed.costs() == (1, pytest.approx(3, abs=1))
    looks = round(30 / 0.5)
    spread = []
    for _ in range(looks):
        listed.now += 0.5
        spread.append((await listed.costs())[0])
    assert sum(spread) < MANY * 30 / (REST_SECONDS / 2)
    assert max(spread[20:]) < MANY  # they do not all come at one time
    assert len(await listed.list.look()) == MANY + 1


async def test_what_becomes_of_a_run_is_seen_soon_though_it_was_over(listed, bench):
    await bench.load()
    await bench.runs.cancel(RUN)
    assert await listed.states() == {RUN: "cancelled"}
    await bench.runs.reopen(RUN)
    listed.now += LATER
    assert await listed.states() == {RUN: "loading"}
    await bench.runs.pause(RUN)
    assert await listed.states() == {RUN: "paused"}  # of one that is not over: at once


async def test_a_run_that_was_made_anew_or_is_gone_is_seen_at_once(listed, bench):
    info = await bench.load()
    await bench.runs.cancel(RUN)
    assert await listed.states() == {RUN: "cancelled"}
    bench.sync.flushall()
    assert await listed.states() == {}
    bench.sync.zadd("genq:runs", {RUN: 1})  # a run without facts is none
    assert await listed.states() == {}
    bench.sync.flushall()
    again = await bench.load()
    assert await listed.states() == {RUN: "open"}
    assert again.epoch != info.epoch
    await bench.runs.cancel(RUN)
    assert await listed.states() == {RUN: "cancelled"}
    bench.sync.zincrby("genq:runs", 60, RUN)  # as if made a minute later, between two looks
    bench.sync.hset(RunKeys(RUN).meta, "state", "open")
    assert await listed.states() == {RUN: "open"}


async def test_what_moves_in_a_run_that_is_over_stirs_it(listed, bench):
    await bench.load()
    await bench.runs.cancel(RUN)
    for key, put in ((RunKeys(RUN).queue, "rpush"), (RunKeys(RUN).stream, "xadd")):
        await listed.states()
        listed.now += LATER
        await listed.states()
        assert listed.list.stirred == set()
        what = {"n": 1} if put == "xadd" else f"{RUN}-1"
        getattr(bench.sync, put)(key, what)
        listed.now += LATER
        await listed.states()
        assert listed.list.stirred == {RUN}
        await listed.states()  # while it rests it stays so
        assert listed.list.stirred == {RUN}
        bench.sync.delete(key)
        listed.now += LATER


async def test_a_look_that_fails_leaves_what_was_known(listed, bench, redis_url):
    await bench.load()
    await bench.runs.cancel(RUN)
    before = await listed.states()
    good, listed.list._redis = listed.list._redis, async_client("redis://127.0.0.1:1")
    with pytest.raises(QueueError):
        await listed.list.look()
    listed.list._redis = good
    assert await listed.states() == before
    assert (await listed.costs())[0] == 0
