"""What commands say while Redis is away or has lost everything, and of a store that is none."""

from __future__ import annotations

import json

import pytest
import redis

from common.ids import run_name
from common.objectstore import RunPaths
from deploy.embedded import free_ports
from producer.load.loader import _Load
from producer.status import unfinished as unfinished_module
from tests.support import forge, loads
from tests.support.committed import dead_letter, store_committed
from tests.support.completions import completion
from tests.support.servers import redis_server

AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture
def loaded(producer, tmp_path):
    path = tmp_path / "rows.jsonl"
    loads.write(path, 40)
    producer(*loads.LOAD, path)
    producer(*loads.LOAD, path, "--run", "second")
    return path


@pytest.fixture
def lose(redis_url):
    def everything():
        with redis.Redis.from_url(redis_url) as client:
            client.flushall()

    return everything


def test_after_a_loss_the_runs_that_are_to_be_put_back_are_listed(
    producer, loaded, lose, store, monkeypatch
):
    store_committed(store, "whole", [[completion(k) for k in range(3)]])
    store.put("not-a-run/other.txt", b"x")
    lose()
    said = producer("status").out
    assert f"No run is in Redis. {store.url} holds 2 that are not finished:\n  rows\n" in said
    assert "  second\nNext: gen-producer load --run rows    (and so each" in said
    assert json.loads(producer("status", "--json").out)["unfinished"] == ["rows", "second"]
    monkeypatch.setattr(unfinished_module, "SHOWN", 1)
    assert "  ... and 1 more: gen-producer status --json" in producer("status").out
    monkeypatch.setattr("common.unfinished.LOOKED", 2)
    assert "2 more folders were not looked at." in producer("status").out


def test_where_storage_holds_nothing_unfinished_a_load_comes_next(producer, redis_url, store):
    store_committed(store, "whole", [[completion(0)]])
    said = producer("status").out
    assert f"No run is in Redis, and {store.url} holds none that is unfinished." in said
    assert said.endswith("Next: gen-producer load DATASET\n")
    assert json.loads(producer("status", "--json").out)["unfinished"] == []


def test_a_store_that_is_away_does_not_keep_status_from_an_answer(
    producer, redis_url, service_env, monkeypatch
):
    monkeypatch.setattr("common.s3.store.RETRY_ATTEMPTS", 1)
    service_env["GENQ_S3_ENDPOINT"] = "http://127.0.0.1:1"
    said = producer("status").out
    assert "are unfinished cannot be told: " in said
    assert "--run NAME" in said
    assert json.loads(producer("status", "--json").out)["unfinished"] is None


def test_a_store_that_is_none_is_refused_with_the_name_of_its_variable(
    producer, loaded, service_env
):
    service_env["GENQ_STORE"] = "bucket-without-scheme"
    for words in (("status",), ("status", "rows"), ("status", "--watch")):
        said = producer(*words, code=2).err
        assert "'bucket-without-scheme' is not a place in object storage." in said
        assert "GENQ_STORE" in said


def test_dead_letters_of_a_finished_run_are_shown_while_redis_is_away(
    producer, redis_url, store, service_env
):
    store_committed(store, "whole", [[completion(0)]], dead=[dead_letter(1)])
    service_env["GENQ_REDIS_URL"] = AWAY
    said = producer("failed", "whole")
    assert "whole  1 dead:\n  1 empty" in said.out
    assert "cannot be reached: this is from failed.jsonl." in said.err
    store.delete(RunPaths(run_name("whole")).success)
    assert "cannot be reached" in producer("failed", "whole", code=4).err


def test_a_run_that_has_lost_its_run_json_is_told_as_that_and_loaded_again(
    producer, loaded, lose, store
):
    lose()
    store.delete(RunPaths(run_name("rows")).run_json)
    for command in ("status", "verify"):
        said = producer(command, "rows", code=2).err
        assert "has no run.json, though other objects of it are there." in said
        assert "did you mean" not in said
        assert "gen-producer load DATASET --run rows" in said
    assert "has no run.json" in producer("load", "--run", "rows", code=2).err
    producer(*loads.LOAD, loaded, "--run", "rows")
    assert "rows" in producer("status", "rows").out
    assert "There is no run rosw" in producer("status", "rosw", code=2).err


@pytest.mark.timeout(120)
def test_watching_begins_while_redis_is_away_and_goes_on_when_it_is_there(producer, service_env):
    (port,) = free_ports(1)
    service_env["GENQ_REDIS_URL"] = f"redis://:secret@127.0.0.1:{port}/0"
    process = producer.start("status", "--watch", "0.2")
    try:
        said = process.stderr.readline()
        assert "cannot be reached" in said
        assert "Trying again." in said
        with redis_server(ports=(port,), password="secret"):
            out, _ = process.communicate(timeout=60)  # no run is there: nothing is to be watched
        assert process.returncode == 0
        assert "No run is in Redis" in out
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def beaten(producer, service_env, monkeypatch):
    """A load that finds nothing when it looks, and everything when it goes on."""

    def load(*words):
        put_up = _Load.put_up

        def after_another(this, *known):
            command = ["gen-producer", *words]
            forge.run(command, env=service_env, check=True, capture_output=True)
            return put_up(this, *known)

        with monkeypatch.context() as patch:
            patch.setattr(_Load, "put_up", after_another)
            return producer(*words).out

    return load


def test_a_load_that_another_was_faster_than_says_that_all_is_there(beaten, loaded, lose):
    said = beaten(*loads.LOAD, loaded, "--run", "third")
    assert "Run third is already loaded, 0 new: 40 rows." in said
    lose()
    assert "Run rows is already loaded, 0 new: 40 rows." in beaten("load", "--run", "rows")
