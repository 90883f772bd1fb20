"""Runs that are loaded again: after a cancel, a loss in storage, or by a wrong command."""

import asyncio
import json

import pytest
import redis

from common.keys import RunKeys
from common.objectstore import RunPaths
from common.parts.chain import fix_format
from common.prove import read_manifest
from common.queue.prompts import QueueLimits
from common.queue.results import ResultStream
from common.queue.scripts import Scripts
from consumer.sink.commit import PartWriter
from consumer.sink.recover import Ledger
from tests.support.completions import completion
from tests.support.loads import LOAD, RUN, assert_whole, counts, queue, queued_ids, work, write


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, 2500)
    return path


@pytest.fixture
def load(producer):
    def run(*words):
        return json.loads(producer(*LOAD, "--json", *words).out)

    return run


def test_a_cancel_killed_in_the_middle_is_made_good(load, rows, redis_url):
    load(rows)

    async def half():
        async with queue(redis_url) as (runs, info, _queue):
            assert await Scripts(runs._redis, RUN, info.epoch).call("cancel", 700) > 0

    asyncio.run(half())
    done = load()
    assert (done["outcome"], done["new"]) == ("continued", 2500)
    assert_whole(redis_url)
    assert queued_ids(redis_url) == list(range(2500))


def test_ids_that_an_old_half_cancel_left_out_are_queued_again(load, rows, redis_url):
    load(rows)
    with redis.Redis.from_url(redis_url) as client:  # loaded on by a release that did not see it
        for job in client.lpop(f"rq:queue:{RUN}", 700):
            client.delete(b"rq:job:" + job)
        client.hincrby(RunKeys(RUN).counts, "loaded", -700)
        client.hset(RunKeys(RUN).meta, "state", "loading")
    assert load()["new"] == 700
    assert_whole(redis_url)


@pytest.mark.parametrize(
    "change", [("--samples", 2), ("--temperature", 0.5), ("--model", "other"), ("--seed", 7)]
)
def test_other_settings_than_those_in_redis_never_reach_run_json(  # noqa: PLR0917 - fixtures
    change, producer, load, rows, redis_url, store
):
    load(rows)
    store.delete(RunPaths(RUN).run_json)
    refused = producer(*LOAD, rows, *change, code=7)
    assert "The run rows in Redis has other settings" in refused.err
    assert store.stat(RunPaths(RUN).run_json) is None
    assert load(rows)["new"] == 0  # the same settings put it back
    assert_whole(redis_url)


def test_a_run_of_another_store_is_refused_naming_both(  # noqa: PLR0917 - fixtures
    producer, service_env, load, rows, redis_url, store
):
    load(rows)
    home = service_env["GENQ_STORE"]
    service_env["GENQ_STORE"] = f"{home}/elsewhere"
    refused = producer(*LOAD, rows, code=7).err
    assert store.url in refused
    assert f"{store.url}/elsewhere" in refused
    assert "--run rows-2" in refused
    assert store.stat(f"elsewhere/{RunPaths(RUN).run_json}") is None
    with redis.Redis.from_url(redis_url) as client:  # as an older release made it
        client.hdel(RunKeys(RUN).meta, "store", "settings")
    assert load(rows)["new"] == 0


def test_a_closed_run_gets_back_what_its_storage_lost(producer, load, rows, redis_url, store):
    write(rows, 250)
    load(rows)
    work(redis_url, 250)
    paths = RunPaths(RUN)
    ledger = Ledger(store, paths, read_manifest(store, RUN), fix_format(store, paths, "jsonl.zst"))
    writer = PartWriter(store, paths, ledger)
    for first in (0, 200):
        writer.write([completion(k) for k in range(first, min(first + 200, 250))])

    async def end():
        async with queue(redis_url) as (runs, info, _queue):
            stream = ResultStream(runs._redis, RUN, info.epoch, QueueLimits())
            await stream.commit(await stream.read("sink", 1000, block_ms=None))
            assert await runs.close(RUN)

    asyncio.run(end())
    assert load()["outcome"] == "already"
    assert counts(redis_url).state == "closed"
    store.delete(paths.part(1, "jsonl.zst"))
    store.delete(paths.index(1))
    assert "50 ids were lost and are queued again" in producer(*LOAD).out
    assert_whole(redis_url, 250)
    assert queued_ids(redis_url) == list(range(200, 250))
