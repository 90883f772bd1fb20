"""Commands that name another store than the run's own, where another run of that name may lie."""

from __future__ import annotations

import asyncio
import json

import pytest

from common.ids import RunName, WorkerName, new_nonce
from common.objectstore import RunPaths
from common.queue.prompts import QueueLimits
from common.queue.results import ResultStream
from common.records import Failure, Finished, Verdict
from common.s3 import open_store
from common.settings import load_settings
from tests.support import loads
from tests.support.runs import store_run

RUN = loads.RUN
PATHS = RunPaths(RunName(RUN))
ME = WorkerName("w")
ROWS = 30


@pytest.fixture
def loaded(producer, tmp_path):
    """A run in Redis, kept in the store that the environment names at first."""
    path = tmp_path / "rows.jsonl"
    loads.write(path, ROWS)
    producer(*loads.LOAD, path)


@pytest.fixture
def other(loaded, store_settings, service_env):
    """Another store with a finished run of that name, which the environment names from now on."""
    store = open_store(
        load_settings(**{**store_settings, "store": f"{store_settings['store']}/elsewhere"})
    )
    store_run(store, RUN, rows=ROWS, samples=2)
    store.put(PATHS.success, b"{}")
    service_env["GENQ_STORE"] = store.url
    return store


def fail(redis_url, count, verdict, **more):
    async def go():
        async with loads.queue(redis_url) as (_runs, _info, queue):
            leased = await queue.lease(ME, count, request=new_nonce())
            why = [
                Failure(one.item, one.token, verdict, "why", charged=True, **more) for one in leased
            ]
            await queue.fail(ME, why)

    asyncio.run(go())


def end(redis_url):
    """Answer and commit what is left, and close the run."""
    left = loads.counts(redis_url).queued

    async def go():
        async with loads.queue(redis_url) as (runs, info, queue):
            leased = await queue.lease(ME, left, request=new_nonce())
            done = [Finished(one.item, one.token, Verdict.OK, b"x", 1, 1) for one in leased]
            await queue.complete(ME, done, request=new_nonce())
            stream = ResultStream(runs._redis, RUN, info.epoch, QueueLimits())
            await stream.commit(await stream.read("sink", ROWS, block_ms=None))
            assert await runs.close(RUN)

    asyncio.run(go())


def assert_refused(said, store, other):
    assert "Run rows in Redis belongs to another store." in said.err
    assert f"this command names {other.url}." in said.err
    assert f"export GENQ_STORE={store.url}\n" in said.err


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--id", "0"), ("--reason", "too_long")])
def test_requeue_takes_no_end_of_another_stores_run_away(  # noqa: PLR0917 - fixtures
    producer, redis_url, store, other, service_env, words
):
    fail(redis_url, 2, Verdict.TOO_LONG, final=True)
    end(redis_url)
    assert_refused(producer("requeue", RUN, *words, code=7), store, other)
    assert other.stat(PATHS.success) is not None
    assert loads.counts(redis_url).state == "closed"
    service_env["GENQ_STORE"] = store.url
    producer("requeue", RUN, *words)


def test_an_item_is_not_looked_up_in_another_stores_run(producer, redis_url, store, other):
    fail(redis_url, 2, Verdict.TOO_LONG, final=True)
    assert_refused(producer("requeue", RUN, "--id", "row:1", code=7), store, other)
    assert loads.counts(redis_url).dead == 2
    letters = json.loads(producer("failed", RUN, "--json").out)["failures"]
    assert [(one["item"], one["row"]) for one in letters] == [(0, None), (1, None)]


def test_what_is_accepted_is_not_kept_beside_another_stores_run(producer, redis_url, store, other):
    fail(redis_url, 20, Verdict.EMPTY)
    assert_refused(producer("resume", RUN, "--accept", code=7), store, other)
    assert loads.counts(redis_url).state == "held"
    for one in (store, other):
        assert one.stat(PATHS.accepted) is None


def test_status_and_trace_tell_nothing_of_another_stores_run(producer, redis_url, store, other):
    end(redis_url)
    assert "rows  closed: storage was not asked" in producer("status", RUN).out
    for one in [*store.list(PATHS.run_json), *store.list(f"{RUN}/prompts/")]:
        other.put(one.key, store.get(one.key))  # of the same rows, even
    said = producer("trace", RUN, 0)
    assert f"Redis has run rows of {store.url}: this is from storage." in said.err
    assert "neither committed nor dead in a finished run" in said.out
