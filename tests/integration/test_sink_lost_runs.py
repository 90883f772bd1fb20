"""A run that this store does not hold, or not as it should, is one run's trouble and no outage."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from common import codec
from common.errors import ConflictError, VerifyError
from common.objectstore import RunPaths
from common.records import RUN_VERSION
from consumer.sink import rest, run
from consumer.sink.figures import Figures
from consumer.sink.service import SinkService
from tests.support.runs import store_run
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab, proven

SECONDS = 30
TRIES = 3


@pytest.fixture(autouse=True)
def soon_again(monkeypatch):
    """A broken run is tried again at once."""
    monkeypatch.setattr(run, "BROKEN_SECONDS", 0.05)
    monkeypatch.setattr(rest, "FIRST_SECONDS", 0.05)


@pytest.fixture
async def lab(settings):
    """A lab of the run `well`, all of whose items are answered."""
    job = await load_job(settings, "well", rows=3)
    await job.answer_all()
    async with local_lab(settings, job) as made:
        yield made


async def answered(settings, **more):
    """Load the run `old`, with one dead letter and else answers."""
    job = await load_job(settings, "old", rows=3, **more)
    await job.bury(await job.lease(1))
    await job.answer_all()
    await job.redis.aclose()
    return job


def lose_run_json(job):
    job.store.delete(RunPaths(job.run).run_json)


def make_it_newer(job):
    key = RunPaths(job.run).run_json
    raw = codec.loads(job.store.get(key))
    job.store.put(key, codec.dumps(raw | {"version": RUN_VERSION + 1}))


def lose_a_shard(job):
    job.store.delete(RunPaths(job.run).prompts(job.manifest.fingerprint, 0))


def cut_a_shard(job):
    job.store.put(RunPaths(job.run).prompts(job.manifest.fingerprint, 0), b"no zstd frame")


def empty_a_shard(job):
    job.store.put(RunPaths(job.run).prompts(job.manifest.fingerprint, 0), codec.compress(b""))


def change_a_row(job):
    key = RunPaths(job.run).prompts(job.manifest.fingerprint, 0)
    rows = codec.decompress(job.store.get(key), limit_bytes=1 << 20)
    job.store.put(key, codec.compress(rows.replace(b"Say 0", b"Say 9")))


HARMS = [lose_run_json, make_it_newer, lose_a_shard, cut_a_shard, empty_a_shard, change_a_row]


class Counted:
    """A store that counts its reads of run.json."""

    def __init__(self, store, key):
        self._store = store
        self._key = key
        self.reads = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, key):
        self.reads += key == self._key
        return self._store.get(key)


@pytest.mark.parametrize("harm", HARMS)
async def test_a_run_that_storage_does_not_hold_breaks_itself_only_and_is_said_once(
    settings, lab, harm
):
    old, figures = await answered(settings), Figures()
    await asyncio.to_thread(harm, old)
    store = Counted(lab.job.store, RunPaths(old.run).run_json)
    service = SinkService(lab.tools(store=store, figures=figures), only=None, burst=False)
    with structlog.testing.capture_logs() as logs:
        lab.start(service.serve())
        await eventually(lambda: store.reads >= TRIES, SECONDS)  # it is tried again
        await eventually(lambda: sinks_of(service)["well"].over, SECONDS)
    await proven(lab.job)
    assert sinks_of(service)["old"].broken
    said = [log for log in logs if log["event"] in ("sink.broken", "sink.away")]
    assert [log["event"] for log in said] == ["sink.broken"]
    key = "run.json" if harm in HARMS[:2] else "000000.jsonl.zst"
    assert key in said[0]["what"]
    assert said[0]["fix"]
    assert not figures.away["storage"]


def sinks_of(service):
    return {sink.run: sink for sink in service.sinks}


@pytest.mark.parametrize("harm", [lose_run_json, lose_a_shard, cut_a_shard])
async def test_a_burst_beside_a_run_that_storage_does_not_hold_ends(settings, lab, harm):
    old = await answered(settings)
    await asyncio.to_thread(harm, old)
    with pytest.raises(VerifyError, match="old"):
        await asyncio.wait_for(lab.finish(), SECONDS)
    await proven(lab.job)


async def test_a_run_that_is_whole_again_is_finished(settings, lab):
    old = await answered(settings)
    run_json = RunPaths(old.run).run_json
    data = await asyncio.to_thread(old.store.get, run_json)
    await asyncio.to_thread(lose_run_json, old)
    service = SinkService(lab.tools(), only=None, burst=False)
    lab.start(service.serve())
    await eventually(lambda: "old" in sinks_of(service) and sinks_of(service)["old"].broken)
    await asyncio.to_thread(old.store.put, run_json, data)
    await eventually(lambda: sinks_of(service)["old"].over, SECONDS)
    assert sinks_of(service)["old"].broken is None


@pytest.mark.parametrize("elsewhere", ["", "s3://another/place"])
async def test_success_of_another_store_s_run_of_the_same_name_stays(settings, lab, elsewhere):
    """Redis knows an open run `old`; this store holds a finished one of that name."""
    old, paths = await answered(settings, kept_in=elsewhere), RunPaths("old")
    await asyncio.to_thread(store_run, old.store, old.run, rows=7)
    await asyncio.to_thread(old.store.put, paths.success, b"{}")
    if elsewhere:
        await asyncio.wait_for(lab.finish(), SECONDS)
    else:  # who made it did not tell
        with pytest.raises(VerifyError, match="has other rows"):
            await asyncio.wait_for(lab.finish(), SECONDS)
    assert await asyncio.to_thread(old.store.stat, paths.success) is not None


async def test_a_closed_run_of_another_store_that_was_requeued_keeps_its_success(settings, lab):
    old, paths = await answered(settings), RunPaths("old")
    assert await lab.job.runs.close(old.run) is False
    with pytest.raises(Exception, match="dead-lettered"):
        await asyncio.wait_for(lab.finish(stop=asyncio.Event()), SECONDS)
    await asyncio.to_thread(store_run, old.store, old.run, rows=7)
    await lab.job.redis.rpush(f"rq:queue:{old.run}", f"{old.run}-0")  # as `rq requeue` does
    with pytest.raises(VerifyError, match="has other rows"):
        await asyncio.wait_for(lab.finish(), SECONDS)
    assert await asyncio.to_thread(old.store.stat, paths.success) is not None


async def test_runs_of_another_store_are_left_alone_and_that_is_said_once(settings, lab):
    old = await answered(settings, kept_in="s3://another/place")
    service = SinkService(lab.tools(), only=None, burst=False)
    with structlog.testing.capture_logs() as logs:
        lab.start(service.serve())
        await eventually(lambda: "well" in sinks_of(service), SECONDS)
        await eventually(lambda: sinks_of(service)["well"].over, SECONDS)
    said = [log for log in logs if log["event"] == "sink.other_store"]
    assert [log["run"] for log in said] == ["old"]
    assert "s3://another/place" in said[0]["fix"]
    assert "old" not in sinks_of(service)
    assert (await lab.job.runs.sample(old.run)).generated == 2


async def test_a_burst_whose_runs_are_all_of_another_store_says_so(settings, lab):
    old = await answered(settings, kept_in="s3://another/place")
    service = SinkService(lab.tools(), only=old.run, burst=True)
    with pytest.raises(ConflictError, match="another store"):
        await asyncio.wait_for(service.serve(), SECONDS)
