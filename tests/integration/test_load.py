"""`gen-producer load` on a real Valkey and a real S3 server, as people type it."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
import redis.asyncio

from common import codec
from common.audit import check_counts
from common.build import build
from common.objectstore import RunPaths
from common.parts.chain import fix_format
from common.prove import read_manifest
from common.records import Row
from consumer.sink.commit import PartWriter
from consumer.sink.recover import Ledger
from tests.support import forge
from tests.support.committed import dead_letter
from tests.support.completions import completion
from tests.support.failpoints import one_now, points_of
from tests.support.loads import LOAD, RUN, assert_whole, counts, queued_ids, work, write
from tests.support.servers import eventually_sync


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, 2500)
    return path


@pytest.fixture
def load(producer):
    def run(*words, **options):
        return json.loads(producer(*LOAD, "--json", *words, **options).out)

    return run


def test_a_data_set_is_loaded_whole(load, rows, redis_url, store):
    done = load(rows)
    assert (done["outcome"], done["rows"], done["new"]) == ("loaded", 2500, 2500)
    assert_whole(redis_url)
    assert queued_ids(redis_url) == list(range(2500))
    manifest = read_manifest(store, RUN)
    assert (manifest.rows, manifest.shard_rows, len(manifest.shards)) == (2500, 1000, 3)
    packed = store.get(RunPaths(RUN).prompts(manifest.fingerprint, 2))
    lines = codec.decompress(packed, limit_bytes=2**20).split(b"\n")
    row = build(Row, codec.loads(lines[499]))
    assert (row.i, row.id) == (2499, "id-2499")
    assert row.messages == [{"role": "user", "content": "prompt 2499"}]


@pytest.mark.row("F2")
def test_the_same_command_again_does_nothing_and_says_so(producer, load, rows, redis_url):
    load(rows)
    again = producer(*LOAD, rows)
    assert "already loaded, 0 new" in again.out
    assert_whole(redis_url)
    assert queued_ids(redis_url) == list(range(2500))


@pytest.mark.row("F1")
@pytest.mark.parametrize("name", points_of("test_killed_anywhere_the_same_command_goes_on"))
def test_killed_anywhere_the_same_command_goes_on(name, producer, load, rows, redis_url):
    producer.killed_at(name, *LOAD, rows)
    done = load(rows)
    assert done["outcome"] in ("loaded", "continued", "restored", "already")
    assert_whole(redis_url)
    assert queued_ids(redis_url) == list(range(2500))


@pytest.mark.row("F1")
@pytest.mark.parametrize(
    "name", one_now(["load.after_shard", "load.after_spool", "load.after_shards"])
)
def test_killed_before_run_json_an_edited_file_is_loaded_unmixed(  # noqa: PLR0917 - fixtures
    name, producer, load, rows, redis_url, store
):
    producer.killed_at(name, *LOAD, rows)
    write(rows, 1800, change=5)
    assert load(rows)["outcome"] == "loaded"
    assert_whole(redis_url, 1800)
    manifest = read_manifest(store, RUN)
    texts = []
    for number in range(len(manifest.shards)):
        packed = store.get(RunPaths(RUN).prompts(manifest.fingerprint, number))
        lines = codec.decompress(packed, limit_bytes=2**20).split(b"\n")[:-1]
        texts += [codec.loads(line)["messages"][0]["content"] for line in lines]
    assert texts == [f"prompt {n}" + " and more" * (n == 5) for n in range(1800)]


@pytest.mark.row("F1")
@pytest.mark.parametrize(
    "name", one_now(["load.after_create", "load.after_run_json", "load.after_chunk"])
)
def test_killed_after_run_json_an_edited_file_is_refused(name, producer, load, rows, redis_url):
    producer.killed_at(name, *LOAD, rows)
    write(rows, 2500, change=1234)
    refused = producer(*LOAD, rows, code=7)
    assert "rows.jsonl:1235" in refused.err
    write(rows, 2500)
    load(rows)
    assert_whole(redis_url)


@pytest.mark.row("F3")
def test_other_rows_are_refused_naming_the_first(producer, load, rows):
    load(rows)
    write(rows, 2500, change=1234)
    text = producer(*LOAD, rows, code=7).err
    assert "Run rows was loaded with other rows." in text
    assert "Row 1,235 is another" in text
    assert "rows.jsonl:1235): messages[0].content (11 characters -> 20 characters)" in text
    assert "--run rows-2" in text
    assert "and more" not in text
    write(rows, 2600)
    text = producer(*LOAD, rows, code=7).err
    assert "Rows: were 2,500, now 2,600" in text
    assert "the first 2,500 are equal" in text
    assert "rows.jsonl:2501" in text
    write(rows, 1000)
    assert "the others are missing now" in producer(*LOAD, rows, code=7).err


@pytest.mark.row("F14")
def test_other_settings_are_refused_with_both_values(producer, load, rows, redis_url):
    load(rows, "--max-tokens", 10)
    refused = producer(*LOAD, rows, "--temperature", 0.5, "--json", code=7)
    error = json.loads(refused.err)
    assert error["exit_code"] == 7
    assert "max_tokens: was 10, now not set" in error["why"]
    assert "temperature: was not set, now 0.5" in error["why"]
    assert_whole(redis_url)


@pytest.mark.row("F2")
def test_two_loads_at_once(producer, rows, redis_url):
    both = [producer.start(*LOAD, rows) for _ in range(2)]
    for one in both:
        one.communicate(timeout=100)
    assert [one.returncode for one in both] == [0, 0]
    assert_whole(redis_url)
    assert queued_ids(redis_url) == list(range(2500))


@pytest.mark.row("F3")
def test_two_loads_of_two_data_sets_at_once(producer, rows, tmp_path, redis_url, store):
    other = tmp_path / "other.jsonl"
    write(other, 2500, change=0)
    both = [producer.start(*LOAD, path) for path in (rows, other)]
    for one in both:
        one.communicate(timeout=100)
    assert sorted(one.returncode for one in both) == [0, 7]
    assert_whole(redis_url)
    won = both[0].returncode == 0
    assert read_manifest(store, RUN).source == str(rows if won else other)


def test_standard_input_and_samples(load, redis_url):
    done = load("-", "--samples", 3, stdin=b'{"prompt":"a"}\n{"prompt":"b"}\n')
    assert (done["rows"], done["items"], done["new"]) == (2, 6, 6)
    assert_whole(redis_url, 6)


def test_objects_as_a_data_set(load, store, rows, redis_url):
    store.put("input/b.jsonl", b'{"prompt":"b"}\n' * 3)
    store.put("input/a.jsonl.zst", codec.compress(b'{"prompt":"a"}\n' * 2))
    assert load(f"{store.url}/input/*")["rows"] == 5


@pytest.mark.row("F7")
def test_bad_rows_stop_or_are_skipped(producer, load, rows, redis_url):
    lines = rows.read_bytes().split(b"\n")
    lines[1233] = b'{"prompt":'
    lines[1235] = b'{"nothing":1}'
    rows.write_bytes(b"\n".join(lines))
    stopped = producer(*LOAD, rows, code=3).err
    assert "rows.jsonl:1234: invalid JSON" in stopped
    skipped = producer(*LOAD, rows, "--on-error", "skip").err
    assert "2 rows were passed over" in skipped
    assert "rows.jsonl:1236: no prompt in it" in skipped
    assert_whole(redis_url, 2498)


def test_a_dry_run_stores_nothing(load, producer, rows, store, redis_url):
    assert load(rows, "--dry-run")["outcome"] == "dry-run"
    assert list(store.list("")) == []
    load(rows)
    write(rows, 10)
    producer(*LOAD, rows, "--dry-run", code=7)


def test_ids_lost_to_rq_empty_are_queued_again(load, rows, redis_url):
    load(rows)
    answered = work(redis_url, 40)
    rq = [sys.executable, "-m", "rq.cli", "empty", "-u", redis_url, RUN]
    subprocess.run(rq, check=True, capture_output=True, timeout=60)
    done = load(rows)
    assert (done["outcome"], done["new"]) == ("repaired", 2460)
    found = counts(redis_url)
    assert check_counts(found) == []
    assert queued_ids(redis_url) == sorted(set(range(2500)) - set(answered))


def flush(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()


def test_after_a_total_loss_of_redis_the_name_is_enough(load, rows, redis_url):
    load(rows)
    flush(redis_url)
    rows.unlink()
    done = load()
    assert (done["outcome"], done["new"], done["committed"]) == ("restored", 2500, 0)
    assert_whole(redis_url)


def commit_parts(store, count):
    """Put ``count`` completions on object storage as the sink does; return their items."""
    manifest = read_manifest(store, RUN)
    paths = RunPaths(RUN)
    ledger = Ledger(store, paths, manifest, fix_format(store, paths, "jsonl.zst"))
    writer = PartWriter(store, paths, ledger)
    items = list(range(3, 3 + 2 * count, 2))
    for at in range(0, count, 100):
        writer.write([completion(k) for k in items[at : at + 100]])
    return items


@pytest.mark.parametrize("with_data", [True, False])
def test_after_a_total_loss_only_what_is_not_committed_is_queued(
    with_data, load, rows, redis_url, store
):
    load(rows)
    items = commit_parts(store, 250)
    for key in list(store.list(RunPaths(RUN).index_prefix))[:1]:
        store.delete(key.key)  # a cache: the part itself tells as well
    flush(redis_url)
    done = load(rows) if with_data else load()
    assert (done["outcome"], done["new"], done["committed"]) == ("restored", 2250, 250)
    assert_whole(redis_url)
    assert queued_ids(redis_url) == sorted(set(range(2500)) - set(items))


@pytest.mark.row("F1")
@pytest.mark.parametrize(
    "name", one_now(points_of("test_killed_while_it_is_put_back_the_same_command_goes_on"))
)
def test_killed_while_it_is_put_back_the_same_command_goes_on(  # noqa: PLR0917 - fixtures
    name, producer, load, rows, redis_url, store
):
    load(rows)
    items = commit_parts(store, 250)
    flush(redis_url)
    producer.killed_at(name, *LOAD)
    assert load()["outcome"] == "continued"
    assert_whole(redis_url)
    assert queued_ids(redis_url) == sorted(set(range(2500)) - set(items))


def test_a_cancelled_run_can_be_loaded_again(producer, load, rows, redis_url):
    load(rows)
    answered = work(redis_url, 40)
    said = producer("cancel", RUN, "--dry-run")
    assert "2,460 of 2,500 items would be dropped" in said.out
    producer("cancel", RUN, "--yes")
    assert queued_ids(redis_url) == []
    done = load()
    assert (done["outcome"], done["new"]) == ("continued", 2460)
    assert queued_ids(redis_url) == sorted(set(range(2500)) - set(answered))
    assert check_counts(counts(redis_url)) == []


def test_no_to_the_question_of_cancel_changes_nothing_and_is_no_interrupt(
    service_env, load, rows, redis_url
):
    load(rows)
    ours, theirs = pty.openpty()
    try:
        running = forge.Popen(
            ["gen-producer", "cancel", RUN],
            env=service_env,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.write(ours, b"n\n")
        out, err = running.communicate(timeout=100)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (running.returncode, out) == (0, f"Run {RUN} is not cancelled. Nothing was changed.\n")
    assert "2,500 of 2,500 items would be dropped" in err
    assert "Interrupted" not in err
    assert_whole(redis_url)


def test_a_loaded_run_keeps_its_priority_and_the_way_to_change_it_is_said(producer, rows):
    write(rows, 3)
    producer(*LOAD, rows, "--priority", 5)
    assert "keeps its priority" not in producer(*LOAD, rows, "--priority", 5).err
    said = producer(*LOAD, rows, "--priority", 7).err
    assert f"run {RUN} keeps its priority 5" in said
    assert f"gen-producer priority {RUN} 7" in said


def test_a_run_that_never_was_is_said(producer):
    text = producer(*LOAD, code=2).err
    assert "There is no run rows" in text
    # Such as one whose load was killed early: the model would be none of its trouble.
    text = producer("load", "--run", RUN, code=2).err
    assert f"There is no run {RUN}" in text
    assert f"gen-producer load DATASET --run {RUN}" in text


def test_a_finished_run_is_left_alone(load, rows, store, redis_url, producer):
    write(rows, 250)
    load(rows)
    paths, committed = RunPaths(RUN), commit_parts(store, 100)
    letters = [dead_letter(k) for k in range(250) if k not in committed]
    counts = {"items": 250, "committed": 100, "dead": 150}
    store.put(paths.manifest, b"{}")
    store.put(paths.failed, b"".join(codec.dumps(one) + b"\n" for one in letters))
    store.put(paths.success, codec.dumps(counts))
    flush(redis_url)
    assert load(rows)["outcome"] == "finished"
    assert load()["outcome"] == "finished"
    assert store.stat(paths.success)
    write(rows, 3)
    producer(*LOAD, rows, code=7)


def left_behind(folder):
    return list(folder.glob("genq-load-*"))


def test_interrupted_it_says_what_is_safe_and_leaves_nothing(producer, service_env, tmp_path):
    service_env["TMPDIR"] = str(tmp_path)
    running = producer.start("load", "-", "--run", RUN, "--model", "m")
    eventually_sync(lambda: left_behind(tmp_path), 60)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=100)
    assert running.returncode == 130
    assert said.strip() == "Interrupted. Nothing is lost; the same command goes on."
    assert left_behind(tmp_path) == []


def test_a_killed_load_is_cleaned_up_by_the_next(producer, service_env, load, rows, tmp_path):
    service_env["TMPDIR"] = str(tmp_path)
    producer.killed_at("load.after_spool", *LOAD, rows)
    assert len(left_behind(tmp_path)) == 1
    producer.start(*LOAD, rows).communicate(timeout=100)
    assert left_behind(tmp_path) == []


def test_servers_that_are_not_there_are_said_before_the_reading(producer, service_env):
    missing = ("load", "no-such-file.jsonl", "--model", "m")
    right = service_env["GENQ_STORE"]
    service_env["GENQ_STORE"] = "s3://no-such-bucket/x"
    text = producer(*missing, code=5).err
    assert "create it: aws s3 mb" in text
    service_env["GENQ_STORE"] = right
    service_env["GENQ_REDIS_URL"] = "redis://127.0.0.1:1/0"
    assert "cannot be reached" in producer(*missing, code=4).err


def test_what_is_not_named_is_asked_for(producer, rows):
    assert "No model is named" in producer("load", rows, code=2).err
    assert "There is nothing to load" in producer("load", code=2).err
    assert "needs a name" in producer("load", "-", code=2).err
    assert "cannot name a run" in producer("load", rows, "--run", "A B", code=2).err
