"""A real network between two hosts, cut for longer than a lease: no proxy decides what is lost."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace

import pytest
import redis.asyncio

from common.records import Sampling
from common.s3 import open_store
from common.settings import load_settings
from tests.faults.rig import LEASE_SECONDS, QUICK, Rig, quick_outages, reaped
from tests.support import servers
from tests.support.consumers import world_of
from tests.support.fake_engine import FakeSglang, fake_spec, fake_state
from tests.support.namespaces import two_hosts
from tests.support.proxy import running_proxy
from tests.support.servers import eventually

ITEMS = 8
LONG = Sampling(max_tokens=60)  # 3 s at this engine's pace
SLOW = (
    "--token-seconds",
    "0.05",
    "--answer-tokens",
    "100000",
    "--max-running-requests",
    str(ITEMS),
)


@pytest.fixture
def hosts():
    with two_hosts() as hosts:
        yield hosts


@pytest.fixture
def redis_there(hosts):
    """A Valkey on the second host: as the test reaches it, past the cable, and as consumers do."""
    _, there = hosts
    with ExitStack() as after:
        server = there.run(after.enter_context, servers.redis_server())
        port = server.ports[0]
        at_cable = there.listener(there.address)
        after.enter_context(running_proxy(port, listener=at_cable, enter=there.enter))
        past_cable = after.enter_context(
            running_proxy(port, listener=socket.create_server(("127.0.0.1", 0)), enter=there.enter)
        )
        place = f"{there.address}:{at_cable.getsockname()[1]}"
        yield past_cable.url(server.url), f"redis://:{server.password}@{place}/0"


@pytest.fixture
def store_there(hosts, s3_server):
    """The first host reaches the session's S3 server at the same address as the test."""
    here, _ = hosts
    port = s3_server.ports[3]
    with running_proxy(port, listener=here.listener("127.0.0.1", port)):
        yield


@pytest.fixture
async def engine(hosts, tmp_path):
    """An engine beside the consumer; the test may look at it."""
    here, _ = hosts
    spec = fake_spec(tmp_path, *SLOW, api_key="")
    launch = FakeSglang().launch(spec)
    process = here.run(subprocess.Popen, launch.argv, env=os.environ | dict(launch.env))
    try:
        listener = socket.create_server(("127.0.0.1", spec.port))
        with running_proxy(spec.port, listener=listener, enter=here.enter):

            async def answers() -> bool:
                try:
                    return bool(await fake_state(spec))
                except OSError:
                    return False

            await eventually(answers, 40)
            yield replace(spec, url=spec.base_url)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def rig(redis_there, store_settings, engine, tmp_path, service_env):
    past_cable, over_cable = redis_there
    given = load_settings(
        redis_url=past_cable, state_dir=tmp_path / "state", **store_settings, **QUICK
    )
    env = {**service_env, "GENQ_REDIS_URL": over_cable}
    async with AsyncExitStack() as after:
        world = await after.enter_async_context(world_of(given, open_store(given), env, tmp_path))
        audit = redis.asyncio.Redis.from_url(past_cable, socket_timeout=30)
        await after.enter_async_context(audit)
        rig = Rig(world, engine, given, audit)
        yield rig
        await rig.stop_sinks()


@pytest.mark.row("C7")
@pytest.mark.usefixtures("store_there")
async def test_a_cable_cut_for_longer_than_a_lease_costs_no_generation(hosts, rig, monkeypatch):
    """All answers are finished meanwhile, and their leases reaped; nobody else takes the items."""
    quick_outages(monkeypatch)
    here, there = hosts
    leases = {"GENQ_LEASE_SECONDS": f"{LEASE_SECONDS}", "GENQ_RENEW_SECONDS": "0.5"}
    # Started from this host: what is forked elsewhere is on that one's network.
    program = ("-m", "tests.support.fake_consumer")
    await rig.load(ITEMS, sampling=LONG)
    with ExitStack() as after:
        consumer = rig.world.consume("--url", rig.engine.url, program=program, **leases)
        process = await asyncio.to_thread(here.run, after.enter_context, consumer)
        await rig.world.running(rig.engine, ITEMS)
        there.cut()
        back = 0
        while back < ITEMS:
            back += await reaped(rig)
            await asyncio.sleep(0)

        async def finished() -> bool:
            return (await fake_state(rig.engine))["finished"] == ITEMS

        await eventually(finished, 60)
        assert (await rig.counts()).generated == 0, "the cable was not cut"
        there.heal()
        await rig.finished(rig.start_sink())
        assert process.process.poll() is None
    assert (await fake_state(rig.engine))["requests"] == ITEMS
    counts = await rig.counts()
    assert (counts.wasted_tokens, counts.failures) == (0, {})
