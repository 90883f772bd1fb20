"""status, verify, pause, requeue ... on a real Valkey and a real S3 server."""

import asyncio
import json
import re
import subprocess
import sys

import pytest
import redis

from common.errors import StoreAwayError
from common.ids import WorkerName, new_nonce
from common.objectstore import RunPaths
from common.parts.chain import fix_format
from common.prove import read_manifest
from common.queue.prompts import PromptQueue, QueueLimits
from common.queue.results import ResultStream
from common.queue.run_state import Runs
from common.records import Failure, Finished, Verdict
from consumer.sink.commit import PartWriter
from consumer.sink.recover import Ledger
from producer.status import store as status_store
from tests.support.completions import completion

RUN = "rows"


@pytest.fixture
def loaded(producer, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p {n}"}) + "\n" for n in range(100)))
    producer("load", path, "--model", "m")
    return path


def with_runs(redis_url, call):
    async def go():
        async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
            runs = Runs(client, QueueLimits())
            info = await runs.get(RUN)
            return await call(runs, PromptQueue(client, RUN, info.epoch, QueueLimits()))

    return asyncio.run(go())


def work(redis_url, *, done=0, dead=0, held=0):
    async def go(runs, queue):
        me = WorkerName("w")
        leased = await queue.lease(me, done + dead + held, request=new_nonce())
        finished = [Finished(one.item, one.token, Verdict.OK, b"x", 5, 10) for one in leased[:done]]
        for at in range(0, done, 32):
            await queue.complete(me, finished[at : at + 32], request=new_nonce())
        failures = [
            Failure(
                one.item,
                one.token,
                Verdict.TOO_LONG,
                "9,000 tokens; 8,192 fit",
                charged=True,
                final=True,
            )
            for one in leased[done : done + dead]
        ]
        await queue.fail(me, failures)
        await runs.set_gauges(me, {"tokens_per_second": 100, "engine": "ready"}, 60)

    with_runs(redis_url, go)


def snapshot(redis_url):
    """Everything that Redis holds, as bytes, without the clients' own traces."""
    with redis.Redis.from_url(redis_url) as client:
        return {key: (client.dump(key), client.ttl(key)) for key in client.keys("*")}


def test_status_counts_and_changes_nothing(producer, loaded, redis_url):
    work(redis_url, done=10, dead=2, held=5)
    before = snapshot(redis_url)
    text = producer("status", RUN).out
    data = json.loads(producer("status", RUN, "--json").out)
    listed = json.loads(producer("status", "--json").out)
    producer("failed", RUN)
    assert {key: value[0] for key, value in snapshot(redis_url).items()} == {
        key: value[0] for key, value in before.items()
    }
    assert "queued 83, waiting retry 0, leased 5, generated 10, committed 0, dead 2" in text
    assert "dead: 2 too_long" in text
    assert data["counts"]["dead"] == 2
    assert data["cause"] == "no consumer serves this model"
    assert listed["runs"][0]["run"] == RUN


def test_status_agrees_with_rq_info(producer, loaded, redis_url):
    work(redis_url, done=10, dead=2, held=5)
    command = [sys.executable, "-m", "rq.cli", "info", "-u", redis_url, "--raw", "-Q"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    counts = json.loads(producer("status", RUN, "--json").out)["counts"]
    shown = {name: int(number) for number, name in re.findall(r"(\d+) (executing|failed)", said)}
    assert said.startswith(f"queue {RUN} {counts['queued']}")
    assert shown == {"executing": counts["leased"], "failed": counts["dead"]}


def test_several_runs_have_a_line_each(producer, loaded):
    producer("load", loaded, "--model", "m", "--run", "second", "--priority", 5)
    first, second = producer("status").out.strip().split("\n")
    assert first.startswith("second ")
    assert second.startswith("rows ")


def test_a_run_that_waits_its_turn_says_behind_which(producer, loaded, redis_url):
    producer("load", loaded, "--model", "m", "--run", "second", "--priority", 5)
    with redis.Redis.from_url(redis_url) as client:
        client.sadd("rq:workers", "rq:worker:w")
        client.hset("rq:worker:w", mapping={"state": "busy", "queues": "rows,second", "genq": "1"})
    work(redis_url)
    assert "rows  waiting: behind run second" in producer("status", RUN).out
    second, first = producer("status").out.strip().split("\n")
    assert "(behind run second)" in first
    assert "waiting " in second
    assert re.search(r"\(nothing was handed out.*\)$", second)  # whole: no terminal is so narrow
    assert 'genq_run_status{run="rows",status="waiting"} 1.0' in producer("exporter", "--once").out


def test_no_run_at_all(producer, redis_url):
    assert "No run is in Redis" in producer("status").out
    assert "There is no run rows in Redis or s3://" in producer("status", RUN, code=2).err


def test_without_a_store_a_run_that_is_not_there_is_said(producer, loaded, service_env):
    del service_env["GENQ_STORE"]
    said = producer("status", "rosw", code=2).err
    assert "There is no run rosw in Redis" in said
    assert "rows" in said.splitlines()[0]


def test_a_run_that_is_only_in_object_storage_is_said(producer, loaded, redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    said = producer("status", RUN).out
    assert "not in Redis; object storage has 0 of 100" in said
    assert "gen-producer load --run rows" in said
    assert json.loads(producer("status", RUN, "--json").out)["state"] == "not_in_redis"


@pytest.mark.row("F1")
def test_an_incomplete_load_is_said(producer, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt":"x"}\n' * 100)
    producer.killed_at("load.after_create", "load", path, "--model", "m")
    assert "rows  loading: 0 of 100 queued" in producer("status", RUN).out


def test_watching_ends_with_the_run(producer, loaded):
    producer("cancel", RUN, "--yes")
    assert "rows  cancelled" in producer("status", RUN, "--watch", "0.2").out


def test_status_without_redis_exits_4_with_a_json_error(producer, loaded, service_env):
    service_env["GENQ_REDIS_URL"] = "redis://127.0.0.1:1/0"
    error = json.loads(producer("status", RUN, "--json", code=4).err)
    assert "cannot be reached" in error["what"]


def test_pause_and_resume(producer, loaded):
    producer("pause", RUN)
    producer("pause", RUN)
    assert "rows  paused" in producer("status", RUN).out
    assert json.loads(producer("resume", RUN, "--json").out)["outcome"] == "open"
    assert "rows  stalled: no consumer" in producer("status", RUN).out
    said = producer("pause", "other", code=2).err
    assert "There is no run other in Redis" in said
    assert "gen-producer status    lists the runs" in said


def test_a_run_that_is_over_is_neither_paused_nor_cancelled_nor_resumed(
    producer, loaded, redis_url
):
    said = producer("cancel", RUN, code=2).err
    assert "gen-producer cancel rows --yes" in said
    work(redis_url, dead=1)
    producer("cancel", RUN, "--yes")
    producer("cancel", RUN, "--dry-run")
    for words in (("requeue", "--dry-run"), ("requeue",)):
        assert "takes no more work: it is cancelled" in producer(*words, RUN, code=7).err
    said = producer("resume", RUN, code=7).err
    assert "Run rows cannot be resumed: it is cancelled." in said
    assert "gen-producer load --run rows" in said


def test_a_finished_run_is_not_cancelled(producer, loaded, redis_url, store):
    close(redis_url, store)
    for words, done in {
        ("pause",): "paused",
        ("resume",): "resumed",
        ("cancel", "--yes"): "cancelled",
        ("cancel", "--dry-run"): "cancelled",
        ("cancel",): "cancelled",  # before anybody is asked
    }.items():
        said = producer(*words, RUN, code=7).err
        assert f"Run rows cannot be {done}: it is finished." in said
        assert "GENQ_" not in said
        assert "gen-producer verify rows" in said


def test_dead_letters_are_shown_and_queued_again(producer, loaded, redis_url):
    work(redis_url, dead=3)
    said = producer("failed", RUN, "--limit", 2).out
    assert "3 too_long" in said
    assert "row 2  item 1  too_long" in said
    assert "a larger --context" in said
    assert "verify rows --allow-failures" in said
    listed = json.loads(producer("failed", RUN, "--json").out)["failures"]
    assert sorted((one["row"], one["item"]) for one in listed) == [(1, 0), (2, 1), (3, 2)]
    assert said.count("9,000 tokens; 8,192 fit") == 2
    assert "... and 1 more" in said
    would = "3 dead letters of run rows would be queued again. Nothing was changed."
    assert would in producer("requeue", RUN, "--dry-run").out
    assert "has 0 dead letters of class empty" in producer("requeue", RUN, "--reason", "empty").out
    assert "no class of failure" in producer("requeue", RUN, "--reason", "nonsense", code=2).err
    data = json.loads(producer("requeue", RUN, "--reason", "too_long", "--json").out)
    assert data["requeued"] == 3
    assert json.loads(producer("status", RUN, "--json").out)["counts"]["queued"] == 100


def close(redis_url, store, *, dead=0):
    """Bring the run to its end, as a consumer and a sink do."""
    work(redis_url, done=100 - dead, dead=dead)
    paths = RunPaths(RUN)
    manifest = read_manifest(store, RUN)
    ledger = Ledger(store, paths, manifest, fix_format(store, paths, "jsonl.zst"))
    PartWriter(store, paths, ledger).write([completion(k) for k in range(100 - dead)])

    async def commit(runs, queue):
        stream = ResultStream(queue._redis, RUN, queue.epoch, QueueLimits())
        await stream.commit(await stream.read("s", 100, block_ms=None))
        assert await runs.close(RUN)

    with_runs(redis_url, commit)


def finish(store, *, dead=0):
    paths = RunPaths(RUN)
    lines = [json.dumps({"k": k}) for k in range(100 - dead, 100)]
    store.put(paths.failed, "".join(line + "\n" for line in lines).encode())
    found = {"items": 100, "committed": 100 - dead, "dead": dead}
    index = json.loads(store.get(paths.index(0)))
    counts = {"verdicts": {"ok": 60, "truncated": 40 - dead}}
    store.put(paths.manifest, json.dumps({"parts": [index], "counts": counts}).encode())
    store.put(paths.success, json.dumps(found).encode())


def test_verify_proves_a_finished_run(producer, loaded, redis_url, store):
    producer("verify", RUN, code=9)
    close(redis_url, store)
    assert "finishing: the sink writes" in producer("status", RUN).out
    finish(store)
    assert "rows  done: 40 truncated" in producer("status", RUN).out
    said = producer("verify", RUN)
    assert "rows  proven: complete and unique" in said.out
    assert "100 items = 100 committed + 0 dead" in said.out
    assert producer("status", RUN, "--watch").out.count("rows  done") == 1
    assert (
        json.loads(producer("load", loaded, "--model", "m", "--json").out)["outcome"] == "finished"
    )
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    said = " ".join(producer("status", RUN).out.split())
    assert "100 of 100 committed; kept but flagged: 40 truncated" in said


@pytest.fixture
def one_try(monkeypatch):
    """Storage that does not answer is not asked again within a call."""
    monkeypatch.setattr("common.s3.store.RETRY_ATTEMPTS", 1)


@pytest.mark.usefixtures("one_try")
def test_while_storage_is_away_all_runs_are_shown(producer, loaded, redis_url, store, service_env):
    close(redis_url, store)
    finish(store)
    producer("load", loaded, "--model", "m", "--run", "second")
    service_env["GENQ_S3_ENDPOINT"] = "http://127.0.0.1:1"
    first, second = producer("status").out.strip().split("\n")
    assert first.split()[:6] == ["rows", "closed", "100.0", "%", "100", "of"]
    assert second.split()[:2] == ["second", "stalled"]
    said = producer("status", RUN).out
    assert "rows  closed: storage was not asked, or does not answer" in said
    assert "Next: gen-producer doctor" in said
    assert "second" in producer("status", "second").out


def test_without_a_store_a_finished_run_is_closed_and_not_watched_for_ever(
    producer, loaded, redis_url, store, service_env
):
    close(redis_url, store)
    del service_env["GENQ_STORE"]
    assert producer("status", RUN, "--watch").out.count("rows  closed: storage was not asked") == 1
    assert json.loads(producer("status", RUN, "--json").out)["state"] == "closed"


def test_a_store_that_does_not_answer_is_asked_once_in_a_while(
    producer, loaded, redis_url, store, monkeypatch
):
    close(redis_url, store)
    asked = []

    class Away:
        url = store.url

        def stat(self, key):
            asked.append(key)
            raise StoreAwayError("away")

        get = list = stat

    monkeypatch.setattr(status_store, "open_store", lambda _settings: Away())
    assert "rows  closed" in producer("status", RUN).out
    assert len(asked) == 1


def test_verify_names_what_is_missing(producer, loaded, redis_url, store):
    close(redis_url, store)
    finish(store)
    (part,) = [found.key for found in store.list(RunPaths(RUN).data_prefix)]
    store.delete(part)
    failed = producer("verify", RUN, "--json", code=9)
    assert json.loads(failed.out)["proven"] is False
    assert json.loads(failed.err)["exit_code"] == 9
    assert "There is no run other" in producer("verify", "other", code=2).err


def test_dead_letters_exit_8_unless_allowed_and_requeue_opens_the_run(
    producer, loaded, redis_url, store
):
    close(redis_url, store, dead=3)
    finish(store, dead=3)
    assert "3 dead letters" in producer("verify", RUN, code=8).err
    producer("verify", RUN, "--allow-failures")
    assert "rows  done: 3 dead-lettered" in producer("status", RUN).out
    producer("requeue", RUN)
    assert store.stat(RunPaths(RUN).success) is None
    counts = json.loads(producer("status", RUN, "--json").out)["counts"]
    assert (counts["queued"], counts["committed"], counts["dead"]) == (3, 97, 0)


def test_what_was_accepted_of_a_held_run_outlives_a_loss_of_redis(
    producer, loaded, redis_url, store
):
    def fail(count):
        async def go(runs, queue):
            me = WorkerName("w")
            leased = await queue.lease(me, count, request=new_nonce())
            failures = [
                Failure(one.item, one.token, Verdict.EMPTY, "no text", charged=True)
                for one in leased
            ]
            await queue.fail(me, failures)

        with_runs(redis_url, go)

    fail(20)
    assert "rows  held by canary: 20 of the first 20 rows went wrong" in producer("status", RUN).out
    assert "gen-producer resume rows --accept" in producer("resume", RUN, code=7).err
    producer("resume", RUN, "--accept")
    assert json.loads(store.get(RunPaths(RUN).accepted)) == {"accepted": ["faults"]}
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    producer("load", "--run", RUN)
    fail(60)
    data = json.loads(producer("status", RUN, "--json").out)
    assert (data["queue_state"], data["canary"]["accepted"]) == ("open", ["faults"])


def test_the_canary_is_a_setting_of_the_run(producer, loaded):
    again = ("load", loaded, "--model", "m", "--canary-rows", 50, "--canary-faults", 0.2)
    said = producer(*again, code=7).err
    assert "canary_rows: was 200, now 50" in said
    assert "--canary-rows 50 --canary-faults 0.2" in said
    producer(*again, "--run", "other", "--canary-truncated", 0)
    canary = json.loads(producer("status", "other", "--json").out)["canary"]
    assert (canary["rows"], canary["accepted"]) == (50, ["truncated"])


def test_verify_and_status_tell_of_what_is_kept_and_not_ok(producer, loaded, redis_url, store):
    work(redis_url, done=10)
    paths = RunPaths(RUN)
    manifest = read_manifest(store, RUN)
    ledger = Ledger(store, paths, manifest, fix_format(store, paths, "parquet"))
    made = [completion(k, verdict="truncated" if k < 7 else "ok") for k in range(10)]
    PartWriter(store, paths, ledger).write(made)
    said = producer("verify", RUN, code=9).out
    assert "7 of them are kept but flagged, not ok." in said
    assert "gen-producer requeue rows --reason truncated --max-tokens N" in said
    assert json.loads(producer("verify", RUN, "--json", code=9).out)["flagged"] == {"truncated": 7}
