"""One run's sink in this process: a real Valkey, and a store that goes away at a word."""

from __future__ import annotations

import pytest
import structlog

from common.errors import VerifyError
from common.objectstore import RunPaths
from common.prove import prove
from consumer.sink.run import RunSink
from tests.support.modelstore import ModelStore
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab


@pytest.fixture
async def lab(settings, monkeypatch):
    monkeypatch.setattr("consumer.sink.outage.LONGEST_SECONDS", 0.2)
    job = await load_job(settings, "outage", rows=10, store=ModelStore())
    async with local_lab(settings, job) as made:
        yield made


@pytest.mark.row("E3")
@pytest.mark.parametrize("call", ["create", "stat", "put", "get", "list"])
async def test_an_outage_of_the_store_is_waited_for_and_said_once(lab, call):
    job = lab.job
    away = True
    calls = 0

    def fault(name, moment):
        nonlocal calls
        calls += name == call
        return away and name == call

    await job.answer_all()
    job.store.fault = fault
    with structlog.testing.capture_logs() as logs:
        serving = lab.start(lab.finish())
        await eventually(lambda: calls > 10, 60)
        counts = await job.counts()
        assert (counts.generated, counts.committed) in {(10, 0), (5, 5)}
        assert not serving.done()
        away = False
        await serving
    storage = [log["event"] for log in logs if log.get("service") == "storage"]
    assert storage == ["sink.away", "sink.back"]
    proof = prove(job.store, job.run)
    assert (proof.problems, proof.complete, proof.unique) == ([], True, True)
    assert any("read_json" in line for line in lab.said)


async def test_a_sink_that_is_stopped_during_an_outage_leaves_results_unacknowledged(lab):
    job = lab.job
    await job.store_format("jsonl.zst")
    job.store.fault = lambda call, _: call == "create"
    await job.answer_all()
    sink = RunSink(lab.tools(), job.info)
    serving = lab.start(sink.serve())
    await eventually(lambda: read_by(job, "sink-test"), 60)
    lab.stop.set()
    await serving
    assert (await job.counts()).generated == 10


async def read_by(job, consumer):
    found = await job.redis.xpending(f"genq:stream:{job.run}", "sink")
    return any(one["name"] == consumer.encode() for one in found["consumers"])


async def test_a_sink_under_its_old_name_takes_up_what_it_had_read(lab):
    job = lab.job
    await job.answer_all()
    await job.redis.xreadgroup("sink", "sink-test", {f"genq:stream:{job.run}": ">"}, count=7)
    await lab.finish()
    assert prove(job.store, job.run).problems == []


async def test_results_of_a_dead_sink_are_claimed_after_a_while(lab):
    job = lab.job
    await job.answer_all()
    await job.redis.xreadgroup("sink", "sink-dead", {f"genq:stream:{job.run}": ">"}, count=7)
    await lab.finish(claim_seconds=0.5)
    assert prove(job.store, job.run).problems == []


async def test_committed_results_that_come_again_are_acknowledged_without_a_part(lab):
    job = lab.job
    leased = await job.lease(10)
    await job.answer(leased[:5])
    sink = lab.start(RunSink(lab.tools(), job.info).serve())
    await eventually(lambda: committed(job, 5), 60)
    lab.stop.set()
    await sink
    parts = [key for key in job.store.objects if "/data/" in key]
    # Redis comes back from an old copy: it does not know that they were committed.
    await job.redis.setrange(f"genq:committed:{job.run}", 0, b"\0\0")
    for item, _ in leased[:5]:
        fields = await example_entry(job, item)
        await job.redis.xadd(f"genq:stream:{job.run}", fields)
    lab.stop.clear()
    sink = lab.start(RunSink(lab.tools(), job.info).serve())
    await eventually(lambda: committed(job, 5), 60)
    lab.stop.set()
    await sink
    assert [key for key in job.store.objects if "/data/" in key] == parts


async def committed(job, count):
    counts = await job.counts()
    return counts.committed == count and counts.generated == 0


async def example_entry(job, item):
    """An entry as `complete` writes it, of another item that is made for it."""
    from tests.support.completions import completion, payload  # noqa: PLC0415 - used here only

    return {"n": item, "v": "ok", "t": 2, "p": payload(completion(item))}


async def test_a_redis_that_went_back_is_told_what_is_committed(lab):
    job = lab.job
    before = {key: await job.redis.dump(key) async for key in job.redis.scan_iter()}
    await job.answer(await job.lease(5))
    with structlog.testing.capture_logs() as logs:
        lab.start(RunSink(lab.tools(), job.info).serve())
        await eventually(lambda: committed(job, 5), 60)
        async with job.redis.pipeline(transaction=True) as pipe:
            pipe.flushdb()
            for key, value in before.items():
                pipe.restore(key, 0, value)
            await pipe.execute()
        await eventually(lambda: committed(job, 5), 60)
    said = [log for log in logs if log["event"] == "sink.redis_went_back"]
    assert [log["items"] for log in said] == [5]


async def test_a_run_whose_parts_cannot_be_trusted_is_not_written(lab):
    job = lab.job
    await job.store_format("jsonl.zst")
    job.store.put(RunPaths(job.run).part(1, "jsonl.zst"), b"")
    await job.answer_all()
    with pytest.raises(VerifyError, match="is missing"):
        await lab.finish()
    assert (await job.counts()).generated == 10
