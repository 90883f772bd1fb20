"""What a host runs out of, and what a newer release leaves behind: work waits or goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import signal

import psutil
import pytest
import structlog

from common.codec import compress, dumps
from common.errors import Exit
from common.ids import new_nonce
from common.installing import UPGRADE
from common.objectstore import RunPaths
from common.queue.prompts import PromptQueue, QueueLimits
from common.records import RESULT_VERSION, RUN_VERSION, Finished, Sampling, Verdict
from tests.faults.rig import pipeline, quick_outages
from tests.support.completions import completion
from tests.support.consumers import enqueue_run
from tests.support.fake_engine import running_fake
from tests.support.producers import Producer
from tests.support.queues import ONE
from tests.support.servers import eventually

FEW_FILES = 10  # fewer than a consumer has open: it gets no new one


@pytest.fixture
async def engine(world):
    flags = ("--token-seconds", "0.01", "--answer-tokens", "60")
    async with running_fake(world.folder, *flags, api_key="") as spec:
        yield spec


@pytest.mark.faults
@pytest.mark.row("A6")
async def test_a_consumer_out_of_file_descriptors_says_so_and_recovers(world, engine):
    await world.load(200, sampling=Sampling(max_tokens=60))
    with world.consume("--url", engine.url) as consumer:
        await world.running(engine, 4)
        process = psutil.Process(consumer.process.pid)
        soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (FEW_FILES, hard))
        await world.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await eventually(lambda: consumer.said("no file descriptor left"), 30)
        assert consumer.said("ulimit -n")
        process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
        await world.generated(200)
        consumer.signal(signal.SIGTERM)
        assert consumer.wait() == Exit.TERMINATED
    counts = await world.counts()
    assert (counts.dead, counts.leased, counts.waiting) == (0, 0, 0)
    assert {result["attempt"] for result in world.results()} == {1}


@pytest.mark.row("A6")
async def test_a_consumer_works_on_where_its_log_has_no_room(world, engine):
    await world.load(20)
    with world.consume("--url", engine.url, log="/dev/full") as consumer:
        await world.generated(20)
        consumer.signal(signal.SIGTERM)
        assert consumer.process.wait(100) == Exit.TERMINATED


def newer(manifest):
    return dataclasses.replace(manifest, version=RUN_VERSION + 1)


@pytest.mark.row("A7")
@pytest.mark.row("G4")
async def test_a_run_of_a_newer_version_is_left_alone_and_others_go_on(world, engine):
    manifest = newer(world.store_run(5, "newer"))
    world.store.put(RunPaths(manifest.run).run_json, dumps(manifest))
    await enqueue_run(world.client, manifest, priority=9)
    await world.load(5, "known")
    with structlog.testing.capture_logs() as logs:
        async with world.serving(url=engine.url):
            await world.generated(5, "known")
    counts = await world.counts("newer")
    assert (counts.queued, counts.failures, counts.dead) == (5, {}, 0)
    said = [log for log in logs if log["event"] == "run left alone"]
    assert [log["run"] for log in said] == ["newer"]
    assert f"version {RUN_VERSION + 1}" in said[0]["what"]
    assert UPGRADE in said[0]["fix"]


@pytest.mark.row("A7")
async def test_a_newer_run_json_is_not_taken_for_a_damaged_one(
    world, service_env, monkeypatch, capsys
):
    manifest = newer(world.store_run(5, "newer"))
    world.store.put(RunPaths(manifest.run).run_json, dumps(manifest))

    def verify():
        return Producer(service_env, monkeypatch, capsys)("verify", "newer", code=Exit.STORE)

    said = await asyncio.to_thread(verify)
    assert "was written by a newer genq" in said.err
    assert UPGRADE in said.err


@pytest.mark.row("A7")
@pytest.mark.row("G4")
async def test_a_result_of_a_newer_version_waits_for_a_sink_that_knows_it(
    redis_url, store_settings, tmp_path, monkeypatch
):
    quick_outages(monkeypatch)
    async with pipeline(redis_url, store_settings, tmp_path) as rig:
        await rig.load(3)
        (active,) = await rig.world.runs.list()
        queue = PromptQueue(rig.audit, active.run, active.epoch, QueueLimits())
        batch = []
        for one in await queue.lease(ONE, 3, request=new_nonce()):
            version = RESULT_VERSION + (one.item == 1)
            text = dumps(completion(one.item, version=version))
            batch.append(Finished(one.item, one.token, Verdict.OK, compress(text), 3, 2))
        await queue.complete(ONE, batch, request=new_nonce())
        with structlog.testing.capture_logs() as logs:
            rig.start_sink()
            await rig.committed(2)
            await rig.stop_sinks()
        counts = await rig.audited()
        assert (counts.committed, counts.generated, counts.dead) == (2, 1, 0)
        said = [log for log in logs if log["event"] == "sink.newer_result_left"]
        assert len(said) == 1
        assert UPGRADE in said[0]["why"]
        monkeypatch.setattr("common.parts.schema.RESULT_VERSION", RESULT_VERSION + 1)
        sink = rig.start_sink()  # under its old name, as after an upgrade
        await rig.finished(sink)
