"""That a run is cancelled outlives Redis: no command names it as one that waits."""

from __future__ import annotations

import json

import pytest
import redis

from common.objectstore import RunPaths
from common.unfinished import is_cancelled, unfinished_runs

RUN = "one"
KEPT = RunPaths(RUN).cancelled


def flush(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()


@pytest.fixture
def loaded(producer, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    producer("load", path, "--run", RUN, "--model", "m")
    return path


@pytest.mark.row("C4")
@pytest.mark.usefixtures("loaded")
def test_after_a_loss_of_redis_a_cancelled_run_does_not_wait_until_it_is_loaded(
    producer, store, redis_url
):
    producer("cancel", RUN, "--yes")
    assert json.loads(store.get(KEPT)) == {"cancelled": True}
    flush(redis_url)
    assert unfinished_runs(store) == ([], 0)
    assert "holds none that is unfinished" in producer("status").out
    producer("load", "--run", RUN)
    assert not is_cancelled(store, RUN)
    flush(redis_url)
    assert f"gen-producer load --run {RUN}" in producer("status").out


@pytest.mark.usefixtures("loaded")
def test_a_run_that_only_storage_knows_can_be_cancelled(producer, store, redis_url):
    flush(redis_url)
    assert "It is not in Redis" in producer("cancel", RUN, "--dry-run").out
    assert not is_cancelled(store, RUN)
    said = producer("cancel", RUN, "--yes").out
    assert "It is not in Redis; what it has committed stays." in said
    assert unfinished_runs(store) == ([], 0)
    producer("cancel", RUN, "--yes")  # twice is as once


def test_a_run_that_is_nowhere_or_finished_cannot_be_cancelled(producer, store, redis_url, loaded):
    flush(redis_url)
    assert "There is no run nowhere" in producer("cancel", "nowhere", "--yes", code=2).err
    store.put(RunPaths(RUN).success, b"{}")
    producer("cancel", RUN, "--yes", code=2)
    assert not is_cancelled(store, RUN)


@pytest.mark.usefixtures("loaded")
def test_without_a_store_it_is_said_that_only_redis_knows(producer, store, service_env):
    kept = service_env.pop("GENQ_STORE")  # of the producer's environment, too
    said = producer("cancel", RUN, "--yes")
    assert f"Run {RUN} is cancelled: 2 items dropped" in said.out
    assert f"only Redis knows that run {RUN} is cancelled" in said.err
    service_env["GENQ_STORE"] = kept
    assert "only Redis" not in producer("cancel", RUN, "--yes").err
    assert is_cancelled(store, RUN)
