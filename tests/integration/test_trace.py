"""`gen-producer trace`: one item's life, from Redis and storage, or from storage alone."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
import redis

from common.ids import RunName, WorkerName, new_nonce
from common.objectstore import RunPaths
from common.parts.chain import chain_end
from common.records import Failure, Finished, Verdict
from producer.trace import places
from producer.trace.places import Finder
from tests.support import loads
from tests.support.committed import add_parts, dead_letter, store_child, store_committed
from tests.support.completions import completion, payload

RUN = loads.RUN
GPU = WorkerName("gpu0-node1")


@pytest.fixture
def loaded(producer, tmp_path):
    path = tmp_path / "rows.jsonl"
    loads.write(path, 40)
    producer(*loads.LOAD, path)


def work(redis_url):
    """Item 0 is leased, 1 waits for a retry, 2 is dead, 3 is generated, 4 is lost by `rq empty`."""

    async def go():
        async with loads.queue(redis_url) as (_, _, items):
            held = await items.lease(GPU, 5, request=new_nonce())
            why = "9,000 tokens;\n8,192 fit \x1b[31m"
            spoiled = [
                Failure(held[1].item, held[1].token, Verdict.EMPTY, "no text", charged=True),
                Failure(
                    held[2].item, held[2].token, Verdict.TOO_LONG, why, charged=True, final=True
                ),
            ]
            await items.fail(GPU, spoiled)
            made = completion(3, worker=GPU, seed=77)
            done = Finished(held[3].item, held[3].token, Verdict.OK, payload(made), 3, 2)
            await items.complete(GPU, [done], request=new_nonce())
            await items.release(GPU, [(held[4].item, held[4].token)])

    asyncio.run(go())


def snapshot(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        return {key: client.dump(key) for key in client.keys("*")}


def test_an_items_life_is_told_wherever_it_is(producer, loaded, redis_url, store):
    work(redis_url)
    before = snapshot(redis_url), sorted(one.key for one in store.list(RUN))
    told = {k: producer("trace", RUN, k).out for k in range(6)}
    life = {k: json.loads(producer("trace", RUN, f"{RUN}-{k}", "--json").out) for k in range(6)}
    assert (snapshot(redis_url), sorted(one.key for one in store.list(RUN))) == before
    assert told[0].startswith("rows  item 0: row 1 id-0, sample 0\n  now: leased by gpu0-node1")
    assert "waiting for its next try until" in told[1]
    assert "attempts used up 1 of 3" in told[1]
    assert "on gpu0-node1: no text" in told[1]
    assert ": too_long\n" in told[2]
    assert "attempts used up 1 of 3" in told[2]  # given up at once: the others were never made
    assert "9,000 tokens;\n    8,192 fit [31m" in told[2].replace("  [31m", " [31m")
    assert "\x1b" not in told[2]
    assert (
        "Next: gen-consumer with a larger --context, then: gen-producer requeue rows --id 2"
        in told[2]
    )
    assert "generated" in told[3]
    assert "not read by a sink yet" in told[3]
    assert "completion: ok, finish reason stop, 3 tokens in, 2 out" in told[3]
    assert "seed 77" in told[3]
    assert "queued, 0 before it and 35 behind" in told[4]
    assert [life[k]["life"]["redis"]["place"] for k in range(6)] == [
        *("leased", "waiting", "dead", "generated", "queued", "queued")
    ]
    assert life[3]["life"]["completion"]["part"] is None
    assert "payload" not in life[3]["life"]["redis"]["result"]
    assert life[0]["version"] == 1
    assert life[2]["life"]["redis"]["failures"][0]["worker"] == GPU
    producer("pause", RUN)
    assert "the run is paused" in producer("trace", RUN, "5").out


def test_an_item_is_named_in_several_ways(producer, loaded, tmp_path):
    asked = ("7", "rows-7", "row:8", "id-7", "id:id-7")
    said = [json.loads(producer("trace", RUN, one, "--json").out) for one in asked]
    assert {(one["life"]["item"], one["life"]["row"]) for one in said} == {(7, 8)}
    assert "row called id-x" in producer("trace", RUN, "id-x", code=2).err
    assert "gen-producer trace rows row:N" in producer("trace", RUN, "id-x", code=2).err
    assert "items 0 to 39" in producer("trace", RUN, "40", code=2).err
    assert "rows 1 to 40" in producer("trace", RUN, "row:0", code=2).err
    assert "There is no run other" in producer("trace", "other", "1", code=2).err
    path = tmp_path / "twice.jsonl"
    path.write_text('{"prompt":"a","id":"7"}\n{"prompt":"b","id":"7"}\n' * 2)
    producer("load", path, "--model", "m", "--samples", 2)
    listed = producer("trace", "twice", "id:7").out
    assert listed.startswith("twice  8 items are meant:\n  item 0: row 1, sample 0\n")
    assert "gen-producer trace twice 0" in listed
    data = json.loads(producer("trace", "twice", "row:2", "--json").out)
    assert (data["match_count"], data["life"]) == (2, None)
    assert data["matches"] == [
        {"item": 2, "row": 2, "sample": 0},
        {"item": 3, "row": 2, "sample": 1},
    ]


def test_storage_alone_tells_of_parts_dead_letters_and_child_runs(producer, store):
    parts = [
        [completion(k, verdict="truncated" if k == 5 else "ok") for k in range(at, at + 4)]
        for at in (0, 4)
    ]
    manifest = store_committed(store, "fam", parts, dead=[dead_letter(8)])
    redone = completion(1, content="all of it", row_id="row 5", seed=9)
    store_child(store, manifest, "fam-longer", [2, 5], [[completion(0), redone]])
    said = producer("trace", "fam", "5", "--texts")
    assert "Redis does not have run fam: this is from storage." in said.err
    assert "now: committed in part 1" in said.out
    assert "/fam/data/part-00000001.parquet, row 1" in said.out
    assert "this one does not count" in said.out
    assert "child run for truncated:  <- counts instead of its parent's" in said.out
    assert "content: all of it" in said.out
    life = json.loads(producer("trace", "fam", "5", "--json").out)["life"]
    (child,) = life["children"]
    assert (life["completion"]["verdict"], life["completion"]["part"]) == ("truncated", 1)
    assert (child["item"], child["completion"]["seed"], child["counts"]) == (1, 9, True)
    assert life["completion"]["texts"] is None
    parent = json.loads(producer("trace", "fam-longer", "1", "--json").out)["life"]["parent"]
    assert parent == {"run": "fam", "item": 5}
    dead = producer("trace", "fam", "8").out
    assert "now: dead: empty" in dead
    assert "the answer is empty" in dead
    assert "Next: gen-producer requeue fam --id 8" in dead
    store.delete(RunPaths(RunName("fam")).success)
    store.delete(RunPaths(RunName("fam")).failed)
    lost = producer("trace", "fam", "8").out
    assert "now: neither committed nor dead" in lost
    assert "gen-producer load --run fam" in lost


def test_what_comes_next_is_with_the_child_run_that_an_item_was_given_to(producer, store):
    cut = [completion(k, verdict="truncated") for k in range(3)]
    dead = dead_letter(3, verdict="too_long")
    manifest = store_committed(store, "big", [cut], dead=[dead])
    again = [completion(0), completion(1, verdict="truncated")]
    store_child(store, manifest, "big-truncated", [0, 1], [again])
    said = {k: producer("trace", "big", k).out.rstrip().split("Next: ")[1] for k in range(4)}
    assert said == {
        0: "gen-producer trace big 0 --texts",  # the child's is ok
        1: "gen-producer requeue big-truncated --reason truncated --max-tokens N",
        2: "gen-producer requeue big --reason truncated --max-tokens N",  # given to none
        3: "gen-consumer with a larger --context, then: gen-producer requeue big --id 3",
    }
    failed = producer("failed", "big").out
    assert "Next: gen-consumer with a larger --context, then: gen-producer requeue big" in failed


def test_storage_is_asked_although_redis_is_away(producer, store, service_env):
    store_committed(store, "alone", [[completion(0)]])
    service_env["GENQ_REDIS_URL"] = "redis://127.0.0.1:1/0"
    said = producer("trace", "alone", "0")
    assert "now: committed in part 0" in said.out
    assert "Redis could not be asked" in said.err


def test_a_damaged_shard_is_named_where_rows_are_looked_through(producer, loaded, store):
    (shard,) = store.list(f"{RUN}/prompts/")
    store.put(shard.key, store.get(shard.key)[:-9])
    said = producer("trace", RUN, "id-7", code=9).err
    assert f"{shard.key} is damaged" in said
    assert f"gen-producer verify {RUN}" in said


def test_dead_letters_are_shown_where_run_json_is_damaged(producer, loaded, redis_url, store):
    work(redis_url)
    assert "row 3  item 2  too_long" in producer("failed", RUN).out
    store.put(RunPaths(RunName(RUN)).run_json, b"{}")
    assert "    item 2  too_long" in producer("failed", RUN).out


class Counting:
    """A store that counts what is read of it."""

    def __init__(self, store):
        self._store, self.got = store, []

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, key):
        self.got.append(key)
        return self._store.get(key)


def test_a_part_is_found_by_few_indexes_and_by_each_of_them_at_most_once(store, monkeypatch):
    """Items end nearly in their order; a late one lies far away, and one part has no index."""
    numbers = list(range(160))
    shuffled = random.Random(5)
    for at in range(0, 160, 20):  # as a fleet ends them: mixed among their neighbours
        some = numbers[at : at + 40]
        shuffled.shuffle(some)
        numbers[at : at + 40] = some
    numbers.remove(3)
    numbers.append(3)  # a retry that ended last
    parts = [[completion(k) for k in numbers[at : at + 4]] for at in range(0, 160, 4)]
    manifest = store_committed(store, "long", parts, suffix="jsonl.zst")
    paths = RunPaths(manifest.run)
    store.delete(paths.index(7))
    monkeypatch.setattr(places, "_AHEAD", 4)
    most = {}
    for k in (*numbers[28:32], 3, 80, 159):
        counting = Counting(store)
        place = Finder(counting, manifest, lambda _read, _there: None).find(k)
        assert (place.part, place.position) == divmod(numbers.index(k), 4)
        read = [key for key in counting.got if "/index/" in key]
        twice = {key for key in read if read.count(key) > 1}
        assert twice <= {paths.index(7)}  # where there is none the part itself is looked into
        most[k] = len(read)
    assert max(n for k, n in most.items() if k != 3) <= 16  # of 40
    assert Finder(store, manifest, lambda _read, _there: None).find(160) is None


def test_the_end_of_a_chain_is_found_by_few_look_ups(store):
    manifest = store_committed(store, "chain", [[completion(0)]], unfinished=9)
    paths = RunPaths(manifest.run)
    assert chain_end(store, paths, "parquet") == 1
    add_parts(store, "chain", [[completion(k)] for k in range(1, 7)], start=1)
    assert [chain_end(store, paths, "parquet", start=at) for at in (0, 1, 6, 7)] == [7] * 4
    assert chain_end(store, RunPaths(RunName("none")), "parquet") == 0


def test_a_name_is_compared_whole_and_as_it_was_written(producer, tmp_path):
    names = ['a"b', "a", "ä/☃", "12", 'x","id":"y']
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps({"prompt": "p", "id": one}) + "\n" for one in names))
    producer("load", path, "--model", "m")
    for row, name in enumerate(names):
        asked = f"id:{name}" if name == "12" else name
        found = json.loads(producer("trace", "odd", asked, "--json").out)["life"]
        assert (found["row"], found["row_id"]) == (row + 1, name)
    producer("trace", "odd", "b", code=2)


def test_requeue_takes_items_by_their_numbers(producer, loaded, redis_url):
    async def kill(n):
        async with loads.queue(redis_url) as (_, _, items):
            held = await items.lease(GPU, n, request=new_nonce())
            verdicts = (Verdict.TOO_LONG, Verdict.BAD_ROW)
            await items.fail(
                GPU,
                [
                    Failure(
                        one.item, one.token, verdicts[one.item % 2], "w", charged=True, final=True
                    )
                    for one in held
                ],
            )

    asyncio.run(kill(8))
    groups = json.loads(producer("failed", RUN, "--limit", 1, "--json").out)["groups"]
    assert [(g["reason"], g["count"], len(g["examples"])) for g in groups] == [
        ("bad_row", 4, 1),
        ("too_long", 4, 1),
    ]
    said = producer("failed", RUN, "--reason", "bad_row", "--limit", 2).out
    assert "4 bad_row" in said
    assert "too_long" not in said
    assert "... and 2 more: --reason bad_row --limit 4" in said
    would = producer("requeue", RUN, "--id", 0, "--id", "rows-1", "--id", "row:21", "--dry-run")
    assert "2 dead letters of run rows" in would.out
    by_reason = ("requeue", RUN, "--id", 0, "--id", 1, "--reason", "bad_row", "--json")
    assert json.loads(producer(*by_reason).out)["requeued"] == 1
    assert json.loads(producer("requeue", RUN, "--id", 0, "--json").out)["requeued"] == 1
    none = producer("requeue", RUN, "--id", 0).out
    assert "0 dead letters among the items named" in none
    assert "gen-producer trace rows 0" in none
    assert "is no item of run rows" in producer("requeue", RUN, "--id", "id-3", code=2).err
    producer("requeue", RUN, "--id", 3, "--max-tokens", 9, code=2)
    assert loads.counts(redis_url).dead == 6


def test_priorities_are_changed_and_the_order_is_said(producer, loaded, tmp_path):
    path = tmp_path / "second.jsonl"
    loads.write(path, 3)
    producer("load", path, "--model", "m", "--priority", 5)
    said = producer("priority", RUN, 9).out
    assert "Run rows has priority 9 (it was 0)." in said
    assert "Served in this order: rows (9), second (5)" in said
    assert json.loads(producer("priority", RUN, "-3", "--json").out)["before"] == 9
    assert producer("status").out.startswith("second ")
    assert "There is no run other in Redis" in producer("priority", "other", 1, code=2).err
    producer("priority", RUN, "high", code=2)
