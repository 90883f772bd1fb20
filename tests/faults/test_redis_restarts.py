"""Redis ends, comes back, and may have forgotten: nothing is lost, nothing is stored twice."""

from __future__ import annotations

import collections
import contextlib

import pytest
import structlog

from tests.faults.rig import RUN, pipeline, quick_outages
from tests.support.fake_engine import fake_state
from tests.support.frail import replica_of
from tests.support.proxy import running_proxy
from tests.support.servers import eventually

ROWS = 40


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quick_outages(monkeypatch)


@pytest.fixture
def rig_of(store_settings, tmp_path):
    def make(url, *flags, **more):
        return pipeline(url, store_settings, tmp_path, *flags, **more)

    return make


@pytest.mark.row("C1")
@pytest.mark.parametrize("end", ["stop", pytest.param("kill", marks=pytest.mark.faults)])
async def test_a_restart_is_waited_for_and_said_once(frail, rig_of, end):
    async with rig_of(frail.url) as rig:
        await rig.load(ROWS)
        sink = rig.start_sink()
        with structlog.testing.capture_logs() as logs:
            async with rig.world.serving(url=rig.engine.url):
                await rig.committed(5)
                getattr(frail, end)()
                tried = len(logs)
                await eventually(lambda: len({log["event"] for log in logs[tried:]}) >= 3, 20)
                frail.start()
                await rig.finished(sink)
        again = collections.Counter(
            (log["event"], log.get("what"), log.get("service"))
            for log in logs
            if log["log_level"] == "warning"
        )
        assert again
        # Three tasks of the sink talk to Redis: the run's own, the finder's and the reaper's.
        assert max(again.values()) <= 3
        assert {"closed"} == {(await rig.counts()).state}


@pytest.mark.row("C2")
async def test_a_lost_tail_costs_repeated_work_only(frail, rig_of):
    async with rig_of(frail.url) as rig:
        await rig.load(ROWS)
        moment = frail.log_bytes()
        sink = rig.start_sink()
        async with rig.world.serving(url=rig.engine.url):
            await rig.committed(20)
            frail.lose_tail(moment)
            assert (await rig.counts()).committed <= 20
            await rig.finished(sink)


@pytest.mark.row("C2")
@pytest.mark.faults
@pytest.mark.parametrize("committed", [1, 8, 30])
async def test_a_tail_lost_at_any_time_costs_repeated_work_only(frail, rig_of, committed):
    async with rig_of(frail.url) as rig:
        await rig.load(ROWS)
        sink = rig.start_sink()
        async with rig.world.serving(url=rig.engine.url):
            await rig.committed(committed)
            moment = frail.log_bytes()
            await rig.committed(min(ROWS, committed + 10))
            frail.lose_tail(moment)
            await rig.finished(sink)


@pytest.mark.row("C2")
async def test_what_is_stored_already_is_not_made_again_after_an_old_snapshot(frail, rig_of):
    """All was committed; Redis then knows of nothing. The sink tells it; no engine is there."""
    async with rig_of(frail.url) as rig:
        await rig.load(ROWS)
        frail.keep()
        async with rig.world.serving(url=rig.engine.url):
            await rig.finished(rig.start_sink())
        before = (await fake_state(rig.engine))["requests"]
        frail.go_back()
        assert (await rig.counts()).queued == ROWS
        await rig.finished(rig.start_sink("another"))
        assert (await fake_state(rig.engine))["requests"] == before


@pytest.mark.row("C2")
@pytest.mark.faults
async def test_an_old_snapshot_in_mid_run_with_batches_in_hand(frail, rig_of):
    async with rig_of(frail.url) as rig:
        await rig.load(ROWS)
        sink = rig.start_sink()
        async with rig.world.serving(url=rig.engine.url):
            await rig.committed(7)
            frail.keep()
            await rig.committed(14)
            frail.go_back()
            await rig.committed(28)
            frail.go_back()
            await rig.finished(sink)


@pytest.mark.row("C2")
async def test_a_snapshot_from_before_the_run_stops_all_until_it_is_loaded(frail, rig_of):
    frail.keep()
    async with rig_of(frail.url) as rig:
        await rig.load(ROWS)
        sink = rig.start_sink()
        with structlog.testing.capture_logs() as logs:
            async with rig.world.serving(url=rig.engine.url):
                await rig.committed(7)
                frail.go_back()
                await eventually(lambda: any(log["event"] == "sink.epoch_gone" for log in logs), 20)
                assert frail.tell("DBSIZE") <= 6  # RQ's worker records, and our gauges
                await rig.load_again()
                await rig.finished(sink)
    said = [log for log in logs if log["event"] == "sink.epoch_gone"]
    assert said[0]["fix"] == f"gen-producer load --run {RUN}"


@pytest.mark.row("C3")
async def test_a_fail_over_to_a_lagging_replica_stores_nothing_twice(frail, rig_of):
    """The old primary lives on with a sink of its own; the new one knows less."""
    with contextlib.ExitStack() as after:
        replica, link = after.enter_context(replica_of(frail))
        proxy = after.enter_context(running_proxy(frail.port))
        async with rig_of(proxy.url(frail.url), direct=frail.url) as rig:
            await rig.load(ROWS)
            old_sink = rig.start_sink("old", url=frail.url)
            async with rig.world.serving(url=rig.engine.url):
                await rig.committed(7)
                link.black_hole(on=True)
                await rig.committed(20)
                with structlog.testing.capture_logs() as logs:
                    await fail_over(proxy, replica, logs, password=frail.server.password)
                    async with new_audit(rig, proxy.url(frail.url)):
                        assert (await rig.counts()).committed < 20
                        await rig.finished(rig.start_sink("new"))
            old_sink.cancel()


async def fail_over(proxy, replica, logs, *, password):
    """As Sentinel and its clients do it: first a replica that takes no writes, then a primary."""
    replica.tell("CONFIG", "SET", "requirepass", password)
    replica.server.password = password
    proxy.repoint(replica.port)
    await eventually(lambda: any("takes no writes" in str(log.get("why")) for log in logs), 20)
    replica.tell("REPLICAOF", "NO", "ONE")


@contextlib.asynccontextmanager
async def new_audit(rig, url):
    """Look at the new primary from now on."""
    import redis.asyncio  # noqa: PLC0415 - used here only

    async with redis.asyncio.Redis.from_url(url, socket_timeout=30) as client:
        old, rig.audit = rig.audit, client
        yield
        rig.audit = old
