"""The way to Redis is gone, or slow: leases are kept or taken up again, no generation is lost."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import closing

import pytest
import structlog

from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.run_state import Runs
from common.records import Sampling
from tests.faults.rig import LEASE_SECONDS, past, pipeline, quick_outages, reaped
from tests.support.fake_engine import fake_state
from tests.support.frail import frail_redis
from tests.support.proxy import running_proxy
from tests.support.servers import eventually

SLOW = ("--token-seconds", "0.05", "--answer-tokens", "100000")  # answers end by their limit
LONG = Sampling(max_tokens=60)  # 3 s at this engine's pace


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quick_outages(monkeypatch)


@pytest.fixture
def proxy(redis_server):
    with running_proxy(redis_server.ports[0]) as proxy:
        yield proxy


@pytest.fixture
async def rig(proxy, redis_url, store_settings, tmp_path):
    url = proxy.url(redis_url)
    async with pipeline(url, store_settings, tmp_path, *SLOW, direct=redis_url) as rig:
        yield rig


@pytest.mark.row("C7")
@pytest.mark.parametrize("fault", ["black hole", pytest.param("reset", marks=pytest.mark.faults)])
async def test_no_generation_is_thrown_away_by_a_partition_longer_than_a_lease(rig, proxy, fault):
    """Requests end meanwhile, leases expire and are reaped; nobody else takes the items."""
    await rig.load(8, sampling=LONG)
    async with rig.world.serving(url=rig.engine.url):
        await rig.world.running(rig.engine, 8)
        proxy.refusing = fault == "reset"
        proxy.black_hole(on=fault == "black hole")
        proxy.reset_all() if fault == "reset" else None
        back = 0

        async def all_back() -> bool:
            nonlocal back
            back += await reaped(rig)
            return back == 8

        await eventually(all_back, 20)
        assert (await rig.audited()).queued == 8
        proxy.refusing = False
        proxy.black_hole(on=False)
        await rig.finished(rig.start_sink(url=rig.settings.redis_url.get_secret_value()))
    state = await fake_state(rig.engine)
    assert state["requests"] == 8
    assert (await rig.counts()).wasted_tokens == 0


@pytest.mark.faults
@pytest.mark.row("C7")
async def test_what_was_finished_in_a_partition_counts_though_another_has_the_item(
    rig, proxy, redis_url
):
    await rig.load(4, sampling=LONG)
    async with rig.world.serving(url=rig.engine.url):
        await rig.world.running(rig.engine, 4)
        proxy.black_hole(on=True)

        async def finished() -> bool:
            return (await fake_state(rig.engine))["finished"] == 4

        await eventually(finished, 20)
        back = 0
        while back < 4:
            back += await reaped(rig)
            await asyncio.sleep(0)
        (info,) = await Runs(rig.audit, QueueLimits()).list()
        other = PromptQueue(rig.audit, info.run, info.epoch, QueueLimits())
        leased = await other.lease("another", 4, request="n" * 16)
        assert len(leased) == 4
        proxy.black_hole(on=False)
        await rig.finished(rig.start_sink(url=redis_url))
        assert await other.extend("another", [(one.item, one.token) for one in leased]) == [
            one.item for one in leased
        ]
    assert (await fake_state(rig.engine))["requests"] == 4


@pytest.mark.faults
@pytest.mark.row("C8")
async def test_half_a_second_to_redis_and_back_costs_no_lease(rig, proxy):
    await rig.load(12, sampling=LONG)
    proxy.latency_seconds = 0.25
    with structlog.testing.capture_logs() as logs:
        async with rig.world.serving(url=rig.engine.url):
            sink = rig.start_sink()
            proof = await rig.finished(sink, 90)
    assert proof.committed == 12
    assert not [log for log in logs if log["event"] == "leases lost"]
    state = await fake_state(rig.engine)
    assert state["requests"] == 12


@pytest.mark.row("C8")
@pytest.mark.faults
async def test_answers_that_trickle_cost_no_item(rig, proxy):
    proxy.bytes_per_second = 4000
    await rig.load(12, sampling=Sampling(max_tokens=20))
    async with rig.world.serving(url=rig.engine.url):
        await rig.finished(rig.start_sink(), 90)


@pytest.mark.row("C8")
@pytest.mark.faults
@pytest.mark.parametrize("cut", [1, 40, 400])
async def test_connections_that_break_after_some_bytes_cost_no_item(rig, proxy, cut):
    await rig.load(12, sampling=Sampling(max_tokens=20))
    async with rig.world.serving(url=rig.engine.url):
        sink = rig.start_sink()
        await rig.world.running(rig.engine, 4)
        proxy.cut_after = cut
        proxy.reset_all()
        await eventually(past(3), 20)
        proxy.cut_after = None
        proxy.reset_all()
        await rig.finished(sink, 90)


@pytest.mark.row("C8")
@pytest.mark.parametrize("jam", ["script", pytest.param("stopped", marks=pytest.mark.faults)])
async def test_a_server_that_is_busy_for_a_while_is_waited_for(store_settings, tmp_path, jam):
    with frail_redis() as frail:
        async with pipeline(frail.url, store_settings, tmp_path, *SLOW) as rig:
            await rig.load(8, sampling=LONG)
            frail.tell("CONFIG", "SET", "busy-reply-threshold", "50")
            with structlog.testing.capture_logs() as logs:
                async with rig.world.serving(url=rig.engine.url):
                    await rig.world.running(rig.engine, 8)
                    if jam == "script":
                        await busy_by_script(frail, logs)
                    else:
                        frail.server.process.send_signal(signal.SIGSTOP)
                        await eventually(past(LEASE_SECONDS + 1), 20)
                        frail.server.process.send_signal(signal.SIGCONT)
                    await rig.finished(rig.start_sink())
            assert (await fake_state(rig.engine))["requests"] == 8
            assert not [log for log in logs if log["event"] == "leases lost"]


async def busy_by_script(frail, logs):
    """A script of somebody's that does not end, until it is killed after a lease's length."""

    def loop():
        with closing(frail.client()) as client, pytest.raises(Exception, match="killed by user"):
            client.eval("while true do end", 0)

    thread = threading.Thread(target=loop)
    thread.start()
    await eventually(lambda: any("kept busy" in str(log.get("why")) for log in logs), 20)
    await eventually(past(LEASE_SECONDS + 1), 20)
    await asyncio.to_thread(frail.tell, "SCRIPT", "KILL")
    await asyncio.to_thread(thread.join, 10)
