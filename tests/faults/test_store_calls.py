"""Each kind of failure at each operation of the store, between a sink and a real S3 server."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from common.errors import DeadLettersError
from common.objectstore import Created
from common.s3 import open_store
from consumer.sink.batcher import Bounds
from consumer.sink.run import RunSink
from tests.support.s3_exchange import CREATE, DELETE, GET, HEAD, LIST, PUT
from tests.support.s3_proxy import NARROW_BYTES
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab, proven

ROWS = 12  # in parts of five
OPERATIONS = (PUT, CREATE, GET, HEAD, LIST, DELETE)
FAILURES = {
    "500": OPERATIONS,
    "503": OPERATIONS,
    "429": OPERATIONS,
    "409": OPERATIONS,
    "reset": OPERATIONS,
    "timeout": OPERATIONS,
    "black hole": OPERATIONS,
    "answer lost": OPERATIONS,
    "cut": (GET, LIST),
    "foreign page": (CREATE, LIST),
    "stale": (HEAD,),
}
TABLE = [(failure, operation) for failure, some in FAILURES.items() for operation in some]


@pytest.fixture
def short_silence(monkeypatch):
    """A store that says nothing is given up after a second."""
    monkeypatch.setattr("common.s3.wire.SILENCE_SECONDS", 1.0)


@pytest.fixture
async def lab(settings, store_proxy, monkeypatch):
    monkeypatch.setattr("consumer.sink.outage.LONGEST_SECONDS", 0.2)
    store = open_store(settings.model_copy(update={"s3_endpoint": store_proxy.url}))
    job = await load_job(settings, "calls", rows=ROWS, store=store)
    async with local_lab(settings, job) as made:
        yield made


async def start_and_finish(lab):
    """What gen-sink --burst does, with one dead letter among the results."""
    await lab.job.bury(await lab.job.lease(1))
    await lab.job.answer_all()
    await asyncio.to_thread(lab.job.store.probe)
    with pytest.raises(DeadLettersError):
        await lab.finish(bounds=Bounds(rows=5, seconds=60))
    return await proven(lab.job, dead=1)


@pytest.mark.row("E3")
async def test_calls_that_fail_now_and_then_cost_nothing(lab, store_proxy):
    within = f"/{lab.job.run}/"
    store_proxy.fail("503", on={PUT}, times=1, path=within)
    store_proxy.fail("answer lost", on={CREATE}, times=1, path=within)
    store_proxy.fail("409", on={CREATE}, times=1, path=within)
    store_proxy.fail("reset", on={GET}, times=1, path=within)
    store_proxy.fail("500", on={HEAD}, times=1, path=within)
    store_proxy.fail("429", on={LIST}, times=1)
    store_proxy.fail("500", on={DELETE}, times=1)
    proof = await start_and_finish(lab)
    assert sum(store_proxy.count(fault=name) for name in FAILURES) == 7
    assert proof.parts == 3


@pytest.mark.faults
@pytest.mark.row("E3")
@pytest.mark.parametrize(("failure", "operation"), TABLE)
async def test_each_failure_of_each_operation_is_survived(
    lab, store_proxy, short_silence, failure, operation
):
    lab.job.store = open_store(lab.settings.model_copy(update={"s3_endpoint": store_proxy.url}))
    where = {DELETE: ".genq-probe", LIST: ""}.get(operation, f"/{lab.job.run}/")
    store_proxy.fail(failure, on={operation}, times=2, path=where)
    proof = await start_and_finish(lab)
    assert store_proxy.count(operation, fault=failure) == 2
    assert proof.parts == 3


@pytest.mark.row("E4")
@pytest.mark.parametrize("failure", ["answer lost", "repeat"])
async def test_a_commit_of_our_own_is_known_again_when_its_answer_was_lost(
    lab, store_proxy, failure
):
    """`repeat`: what is between us and the store sends it twice, and the answer is a 412."""
    store_proxy.fail(failure, on={CREATE}, path="/data/")
    with structlog.testing.capture_logs() as logs:
        proof = await start_and_finish(lab)
    assert proof.parts == 3
    assert store_proxy.count(CREATE, path="/data/") == 3  # each was sent once
    assert "sink.part_of_another" not in [one["event"] for one in logs]


@pytest.mark.row("E2")
@pytest.mark.row("E5")
@pytest.mark.parametrize("patient", [True, pytest.param(False, marks=pytest.mark.faults)])
async def test_a_part_that_arrives_after_another_s_is_not_taken(
    lab, store_proxy, settings, monkeypatch, patient
):
    """A PUT under way for an hour: its sink waits for the answer, or has given it up."""
    monkeypatch.setattr("common.s3.wire.SILENCE_SECONDS", 60.0 if patient else 0.5)
    job = lab.job
    slow = open_store(settings.model_copy(update={"s3_endpoint": store_proxy.url}))
    store_proxy.fail("hold", on={CREATE}, path="/data/", times=None if patient else 1)
    await job.answer(await job.lease(5))
    stop = asyncio.Event()
    tools = lab.tools(consumer="sink-slow", store=slow, folder=lab.settings.state_dir / "slow")
    slow_sink = lab.start(RunSink(tools, job.info).serve())
    await eventually(lambda: store_proxy.held, 30)
    await job.answer_all()
    other = lab.tools(claim_seconds=0.2, store=open_store(settings), stop=stop)
    quick_sink = lab.start(RunSink(other, job.info).serve())
    await eventually(lambda: finished(job), 60)
    before = await proven(job)
    store_proxy.mend()
    await eventually(lambda: not store_proxy.busy and store_proxy.count(HEAD, path="/data/"), 30)
    stop.set()
    lab.stop.set()
    await asyncio.gather(slow_sink, quick_sink)
    assert (await proven(job)).parts == before.parts


async def finished(job):
    return (await job.counts()).state == "closed" and await asyncio.to_thread(
        job.store.stat, f"{job.run}/_SUCCESS"
    )


@pytest.mark.row("E7")
async def test_a_large_part_may_take_longer_than_a_connection(lab, store_proxy, monkeypatch):
    """The line carries less in a connection's time limit than the part is large."""
    monkeypatch.setattr("common.s3.wire.CONNECT_SECONDS", 0.5)
    store = open_store(lab.settings.model_copy(update={"s3_endpoint": store_proxy.url}))
    store_proxy.fail("narrow", on={PUT, CREATE})
    data = bytes(3 * NARROW_BYTES)
    await asyncio.to_thread(store.put, "plain", data)
    assert await asyncio.to_thread(store.create, "conditional", data) is Created.CREATED
    assert store_proxy.count(fault="narrow") == 2  # each at the first try
    assert await asyncio.to_thread(store.get, "plain") == data


@pytest.mark.row("E7")
async def test_an_answer_that_trickles_is_given_up_and_asked_for_again(
    lab, store_proxy, monkeypatch
):
    monkeypatch.setattr("common.s3.wire.SILENCE_SECONDS", 1.0)
    store = open_store(lab.settings.model_copy(update={"s3_endpoint": store_proxy.url}))
    data = b"x" * 20_000  # twenty seconds at the proxy's pace, and never a silence
    await asyncio.to_thread(store.put, "large", data)
    store_proxy.fail("trickle", on={GET}, times=1)
    assert await asyncio.to_thread(store.get, "large") == data
    assert store_proxy.count(GET, path="large") == 2
