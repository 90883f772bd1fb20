"""Truncated items done again with a higher limit, as a child run: real Valkey, real S3 server."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
import redis

from common.codec import decompress, loads
from common.family import Family
from common.ids import WorkerName, new_nonce, run_name
from common.objectstore import RunPaths
from common.parts.chain import fix_format
from common.prove import read_manifest
from common.records import Failure, Verdict
from consumer.sink.commit import PartWriter
from consumer.sink.recover import Ledger
from tests.support import loads as loads_of
from tests.support.completions import completion
from tests.support.failpoints import points_of

RUN, CHILD = "rows", "rows-truncated"
REDO = ("requeue", RUN, "--reason", "truncated", "--max-tokens", 64)
ROWS = 1200  # more than one shard
CUT = [3, 7, 8, 999, 1000, 2399]


def commit(store, run, verdicts, *, suffix="parquet", **more):
    manifest = read_manifest(store, run_name(run))
    paths = RunPaths(manifest.run)
    fixed = fix_format(store, paths, suffix)
    writer = PartWriter(store, paths, Ledger(store, paths, manifest, fixed))
    writer.write([completion(k, verdict=verdict, **more) for k, verdict in verdicts.items()])


@pytest.fixture
def loaded(producer, store, tmp_path):
    """A run of two samples a row, of which some are committed as truncated."""
    path = tmp_path / "rows.jsonl"
    lines = [{"prompt": f"p {n}", "id": f"id-{n}", "topic": n} for n in range(ROWS)]
    lines[3] |= {"max_tokens": 5, "seed": 9, "temperature": 0.5}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    producer("load", path, "--model", "m", "--samples", 2, "--max-tokens", 8, "--seed", 4)
    commit(store, RUN, {0: "ok", 1: "ok"})
    commit(store, RUN, {k: "truncated" if k in CUT else "ok" for k in [2, *CUT[:5], 2000]})
    commit(store, RUN, {2399: "truncated", 10: "empty"})


def rows_of(store, run):
    manifest = read_manifest(store, run_name(run))
    keys = [
        RunPaths(manifest.run).prompts(manifest.fingerprint, n) for n in range(len(manifest.shards))
    ]
    text = b"".join(decompress(store.get(key), limit_bytes=1 << 26) for key in keys)
    return manifest, [loads(line) for line in text.splitlines()]


def queued(redis_url, run):
    with redis.Redis.from_url(redis_url) as client:
        return client.llen(f"rq:queue:{run}")


@pytest.mark.usefixtures("loaded")
def test_only_the_truncated_items_are_done_again(producer, store, redis_url):
    before = {stat.key: stat.etag for stat in store.list(f"{RUN}/")}
    said = producer(*REDO, "--dry-run").out
    assert "6 of 6 truncated items of run rows would be done again as run rows-truncated" in said
    assert {stat.key for stat in store.list("rows-truncated/")} == set()
    data = json.loads(producer(*REDO, "--json").out)
    assert (data["outcome"], data["requeued"], data["child"]) == ("requeued", 6, CHILD)

    manifest, rows = rows_of(store, CHILD)
    assert (manifest.parent, manifest.parent_reason, manifest.items) == (RUN, "truncated", 6)
    parent = read_manifest(store, run_name(RUN))
    assert manifest.settings.sampling.max_tokens == 64
    assert manifest.settings.model == parent.settings.model
    assert manifest.settings.samples == 1
    assert manifest.settings.seed not in (0, parent.settings.seed)
    assert [row["id"] for row in rows] == [f"id-{k // 2}" for k in CUT]
    assert [row["i"] for row in rows] == list(range(6))
    assert [row["metadata"]["topic"] for row in rows] == [k // 2 for k in CUT]
    # A row's own limit would go before the run's; its own seed must not make it another sample.
    own = rows[1]["sampling"]
    assert (own["max_tokens"], own["temperature"]) == (None, 0.5)
    assert own["seed"] not in (None, 9)
    assert rows[0]["sampling"]["seed"] is None
    assert queued(redis_url, CHILD) == 6

    after = {stat.key: stat.etag for stat in store.list(f"{RUN}/")}
    assert {key for key in after if before.get(key) != after[key]} == {
        f"{RUN}/children/{CHILD}.json"
    }
    assert producer("verify", CHILD, code=9)


@pytest.mark.usefixtures("loaded")
def test_the_same_command_again_does_nothing_and_says_so(producer, store, redis_url):
    producer(*REDO)
    again = producer(*REDO)
    assert "Run rows-truncated has them already: 6 truncated items of run rows." in again.out
    assert json.loads(producer(*REDO, "--json").out)["outcome"] == "already"
    said = producer("requeue", RUN, "--reason", "truncated", "--max-tokens", 99).out
    assert "All 6 truncated items of run rows are with a child run." in said
    assert "gen-producer requeue rows-truncated --reason truncated" in said
    assert queued(redis_url, CHILD) == 6
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    again = producer(*REDO)  # after a loss of Redis it puts the child back
    assert "6 items of it are queued again." in again.out
    assert queued(redis_url, CHILD) == 6


@pytest.mark.usefixtures("loaded")
def test_what_is_truncated_later_gets_a_child_of_its_own_and_children_have_children(
    producer, store
):
    producer(*REDO)
    commit(store, RUN, {20: "truncated", 21: "ok"})
    data = json.loads(producer(*REDO, "--json").out)
    assert (data["child"], data["requeued"]) == (f"{CHILD}-2", 1)
    assert json.loads(producer(*REDO, "--json").out)["outcome"] == "already"
    commit(store, CHILD, {0: "ok", 1: "truncated"}, content="of the child", suffix="jsonl.zst")
    deeper = ("requeue", CHILD, "--reason", "truncated", "--max-tokens", 128)
    data = json.loads(producer(*deeper, "--json").out)
    assert (data["child"], data["requeued"]) == (f"{CHILD}-truncated", 1)
    commit(store, f"{CHILD}-truncated", {0: "ok"}, content="of the grandchild")
    family = Family.of(store, run_name(RUN))
    told = {one.k: (one.content, one.verdict) for one in family.completions()}
    assert told[3] == ("of the child", "ok")
    assert told[7] == ("of the grandchild", "ok")
    assert told[8] == ("answer to 8", "truncated")
    assert len(told) == 2 + 7 + 2 + 2


@pytest.mark.usefixtures("loaded")
def test_a_child_has_the_name_that_is_given_unless_it_is_anothers(producer, store):
    named = (*REDO, "--as", "longer", "--no-thinking")
    assert json.loads(producer(*named, "--json").out)["child"] == "longer"
    settings = read_manifest(store, run_name("longer")).settings
    assert (settings.thinking, settings.sampling.max_tokens) == (False, 64)
    assert json.loads(producer(*named, "--json").out)["outcome"] == "already"
    said = producer(*REDO, "--as", "longer", code=7).err
    assert "thinking: was False, now not set" in said
    assert "is another run" in producer(*REDO, "--as", RUN, code=7).err


@pytest.mark.usefixtures("loaded")
def test_a_child_with_wrong_settings_is_cancelled_and_gives_its_items_back(producer, store):
    producer(*REDO)
    commit(store, CHILD, {0: "truncated"}, suffix="jsonl.zst")
    higher = (*REDO[:-1], 99)
    assert f"gen-producer cancel {CHILD} --yes" in producer(*higher).out
    producer("cancel", CHILD, "--yes")
    assert f"children: {CHILD} (0 of 6 truncated redone, cancelled)" in producer("status", RUN).out
    data = json.loads(producer(*higher, "--json").out)
    assert (data["child"], data["requeued"]) == (f"{CHILD}-2", 5)
    _, rows = rows_of(store, f"{CHILD}-2")
    assert [row["id"] for row in rows] == [f"id-{k // 2}" for k in CUT[1:]]
    assert json.loads(producer(*higher, "--json").out)["outcome"] == "already"
    # The cancelled one goes on after all: work is repeated, no item counts twice.
    producer("load", "--run", CHILD)
    commit(store, CHILD, dict.fromkeys(range(1, 6), "ok"), content="of the first")
    commit(store, f"{CHILD}-2", dict.fromkeys(range(5), "ok"), content="of the second")
    told = [(one.k, one.content) for one in Family.of(store, run_name(RUN)).completions()]
    assert len(told) == len(set(told)) == 11
    assert [told for told in sorted(told) if told[1] == "of the second"] == []


@pytest.mark.usefixtures("loaded")
def test_what_was_cut_off_is_not_redone_with_no_more_room(producer):
    said = producer("requeue", RUN, "--reason", "truncated", "--max-tokens", 8, code=2).err
    assert "--max-tokens 8 is no higher than the 8 of run rows" in said
    assert "gen-producer requeue rows --reason truncated --max-tokens 32" in said
    producer("requeue", RUN, "--reason", "empty", "--max-tokens", 8)


@pytest.mark.usefixtures("loaded")
def test_what_cannot_be_redone_is_refused(producer):
    assert "needs the class" in producer("requeue", RUN, "--max-tokens", 9, code=2).err
    said = producer("requeue", RUN, "--reason", "ok", "--max-tokens", 64, "--dry-run", code=2).err
    assert "Completions that are ok are not done again." in said
    assert "There is no run other" in producer("requeue", "other", *REDO[2:], code=2).err
    said = producer("requeue", RUN, "--reason", "looping", "--temperature", 1.0).out
    assert "Run rows holds no looping completion." in said
    empty = producer("requeue", RUN, "--reason", "empty", "--temperature", 1.0, "--json").out
    assert json.loads(empty)["requeued"] == 1


@pytest.mark.parametrize("step", points_of("test_a_redo_killed_anywhere_goes_on"))
@pytest.mark.usefixtures("loaded")
def test_a_redo_killed_anywhere_goes_on(producer, store, redis_url, step):
    producer.killed_at(step, *REDO)
    producer(*REDO)
    assert queued(redis_url, CHILD) == 6
    assert [stat.key for stat in store.list(f"{RUN}/children/")] == [f"{RUN}/children/{CHILD}.json"]
    assert json.loads(producer(*REDO, "--json").out)["outcome"] == "already"


async def bury(redis_url, count):
    async with loads_of.queue(redis_url) as (_runs, _info, queue):
        me = WorkerName("w")
        leased = await queue.lease(me, count, request=new_nonce())
        cut = [
            Failure(one.item, one.token, Verdict.TRUNCATED, "cut off", charged=True, final=True)
            for one in leased
        ]
        await queue.fail(me, cut)


def test_dead_letters_are_named_where_they_are_to_be_redone_and_loaded_under_another_name(
    producer, redis_url, tmp_path
):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"prompt": f"p {n}"}) for n in range(40)]
    path.write_text("".join(f"{line}\n" for line in lines))
    producer("load", path, "--model", "m", "--max-tokens", 8, "--canary-rows", 0)
    asyncio.run(bury(redis_url, 8))
    for words in (REDO, (*REDO, "--dry-run")):
        said = producer(*words).out
        assert "holds no truncated completion: its 8 truncated items are dead letters" in said
        assert "gen-producer requeue rows --reason truncated\n" in said
    names, load = (
        re.search(rf"gen-producer ({verb} .*?)(?: {{4}}|\n)", said)[1].split()
        for verb in ("failed", "load")
    )
    dead = json.loads(producer(*names).out)["failures"]
    assert len(dead) == 8
    some = tmp_path / load[1]
    some.write_text("".join(f"{lines[one['row'] - 1]}\n" for one in dead))
    assert load[2:] == ["--run", CHILD, "--max-tokens", "64"]
    assert "8 rows, 8 ids queued" in producer("load", some, "--model", "m", *load[2:]).out
    assert "(with the same limit; for a higher one" in producer("failed", RUN).out


@pytest.mark.usefixtures("loaded")
def test_verify_names_no_command_for_what_child_runs_have(producer):
    def said():
        return producer("verify", RUN, code=9).out

    assert "requeue rows --reason truncated --max-tokens N" in said()
    producer(*REDO)
    assert "requeue rows --reason empty --max-tokens N" in said(), "the next class"
    producer("requeue", RUN, "--reason", "empty", "--temperature", 1.0)
    assert "requeue" not in said()
    assert "All are with child runs: gen-producer status rows" in said()
