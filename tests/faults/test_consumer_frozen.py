"""A consumer that stands still longer than its leases: stopped from outside, or blocked inside."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis.asyncio
import structlog

from common.audit import check_counts
from common.ids import WorkerName, new_nonce
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.run_state import Runs
from common.records import Finished, Sampling, Verdict
from tests.faults.rig import LEASE_SECONDS, quick_outages
from tests.support.consumers import world_of
from tests.support.fake_engine import fake_state, running_fake
from tests.support.servers import eventually

ITEMS = 8
LONG = Sampling(max_tokens=40)  # 2 s at the engine's pace
LEASE = {"GENQ_LEASE_SECONDS": str(LEASE_SECONDS), "GENQ_RENEW_SECONDS": "0.5"}
OTHER = WorkerName("other")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quick_outages(monkeypatch)


@pytest.fixture
async def world(settings, store, service_env, tmp_path):
    short = settings.model_copy(update={"lease_seconds": LEASE_SECONDS, "renew_seconds": 0.5})
    async with world_of(short, store, service_env, tmp_path) as world:
        yield world


@pytest.fixture
async def engine(world):
    """Its answers end by their limit, at 20 tokens a second; for clients that are gone, too."""
    flags = ("--token-seconds", "0.05", "--answer-tokens", "100000")
    async with running_fake(world.folder, *flags, api_key="") as spec:
        yield spec


@pytest.fixture
async def endless(world):
    """Another engine, whose answers take hours."""
    flags = ("--token-seconds", "30", "--answer-tokens", "100000")
    async with running_fake(world.folder / "endless", *flags, api_key="") as spec:
        yield spec


async def all_finished(engine):
    state = await fake_state(engine)
    return state["finished"] >= ITEMS and not state["running"]


async def one_result_each(world):
    counts = await world.counts()
    assert check_counts(counts) == []
    assert sorted(result["k"] for result in world.results()) == list(range(ITEMS))
    assert (counts.generated, counts.leased, counts.dead) == (ITEMS, 0, 0)
    return counts


@pytest.mark.row("A2")
async def test_a_zombie_that_comes_too_late_is_counted_as_waste(world, engine):
    await world.load(ITEMS, sampling=LONG)
    with world.consume("--url", engine.url, **LEASE) as zombie:
        await world.running(engine, ITEMS)
        zombie.signal(signal.SIGSTOP)
        await eventually(lambda: all_finished(engine), 20)  # its answers wait in its sockets
        async with world.serving(url=engine.url):
            await world.generated(ITEMS)
            zombie.signal(signal.SIGCONT)

            async def wasted() -> bool:
                return (await world.counts()).wasted_tokens >= ITEMS * LONG.max_tokens

            await eventually(wasted, 20)
        await one_result_each(world)
        assert zombie.said("event loop was late")
        zombie.signal(signal.SIGTERM)
        assert zombie.wait() == 143
    await one_result_each(world)


@pytest.mark.faults
@pytest.mark.row("A2")
async def test_a_zombie_that_comes_first_after_all_wins_and_the_other_stops(world, engine, endless):
    await world.load(ITEMS, sampling=LONG)
    with world.consume("--url", engine.url, **LEASE) as zombie:
        await world.running(engine, ITEMS)
        zombie.signal(signal.SIGSTOP)
        await eventually(lambda: all_finished(engine), 20)
        async with world.serving(url=endless.url):
            await world.running(endless, ITEMS)
            zombie.signal(signal.SIGCONT)
            await world.generated(ITEMS)

            async def given_up() -> bool:
                return (await fake_state(endless))["running"] == []

            await eventually(given_up, 20)
        counts = await one_result_each(world)
    assert counts.wasted_tokens == 0
    assert {result["engine"] for result in world.results()} == {world.results()[0]["engine"]}


def as_another_host(url: str) -> None:
    """Take all the leases that expire, and answer the items: while this host stands still."""

    async def take() -> None:
        async with redis.asyncio.Redis.from_url(url) as client:
            (info,) = await Runs(client, QueueLimits()).list()
            limits = QueueLimits(lease_seconds=LEASE_SECONDS)
            queue = PromptQueue(client, info.run, info.epoch, limits)
            back = 0

            async def all_back() -> bool:
                nonlocal back
                back += (await queue.reap()).expired
                return back == ITEMS

            await eventually(all_back, 20)
            leased = await queue.lease(OTHER, ITEMS, request=new_nonce())
            batch = [Finished(one.item, one.token, Verdict.OK, b"x", 1, 1) for one in leased]
            await queue.complete(OTHER, batch, request=new_nonce())

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, take()).result()


@pytest.mark.row("A4")
async def test_a_blocked_event_loop_loses_leases_rather_than_pretending(world, endless):
    await world.load(ITEMS)
    with structlog.testing.capture_logs() as logs:
        async with world.serving(url=endless.url):
            await world.running(endless, ITEMS)
            as_another_host(world.url)  # blocks the loop that the consumer runs on

            async def given_up() -> bool:
                return (await fake_state(endless))["running"] == []

            await eventually(given_up, 20)
            counts = await world.counts()
            assert check_counts(counts) == []
            assert (counts.generated, counts.leased) == (ITEMS, 0)
    late = [log["lag_seconds"] for log in logs if log["event"] == "event loop was late"]
    assert max(late) > LEASE_SECONDS / 2
    assert [log["items"] for log in logs if log["event"] == "leases lost"] == [ITEMS]
