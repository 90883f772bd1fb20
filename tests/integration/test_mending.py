"""Finished runs that lost something of storage, or all of Redis: what is said then helps."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from common import codec
from common.errors import DeadLettersError, VerifyError
from common.ids import Item
from common.objectstore import RunPaths
from common.queue.prompts import PromptQueue
from common.records import Failure, Verdict
from consumer.sink.service import SinkService
from producer.load.enqueue import Enqueuer
from tests.support.failpoints import points_of
from tests.support.loads import LOAD, RUN, write
from tests.support.servers import eventually
from tests.support.sinks import WORKER, load_job, local_lab, proven

ROWS = 12  # and five a part: three parts
SECONDS = 30
SUFFIX = "jsonl.zst"
DEAD = {0: Verdict.TOO_LONG, 1: Verdict.BAD_ROW}
PATHS = RunPaths(RUN)


@pytest.fixture
async def lab(settings):
    """A run of which all can be stored."""
    job = await load_job(settings, RUN, rows=ROWS)
    async with local_lab(settings, job) as made:
        yield made


async def finish(lab, *, dead=0):
    """Answer what is open, and let a sink that knows nothing of the run end it."""
    await look_anew(lab)
    await lab.job.answer_all()
    try:
        await lab.finish(stop=asyncio.Event())
    except DeadLettersError:
        assert dead
    await proven(lab.job, dead=dead)


async def finish_with_dead_letters(lab):
    for one, (item, verdict) in zip(await lab.job.lease(len(DEAD)), DEAD.items(), strict=True):
        why = Failure(one[0], one[1], verdict, f"why {item}", charged=True, final=True)
        await lab.job.queue.fail(WORKER, [why])
    await finish(lab, dead=len(DEAD))


async def look_anew(lab):
    """Take the run as Redis has it now: a load may have given it another epoch."""
    job = lab.job
    job.info = await job.runs.get(job.run)
    job.queue = PromptQueue(job.redis, job.run, job.info.epoch, lab.settings.limits())


def marked(job):
    return job.store.stat(PATHS.success) is not None


def letters(job):
    return {one["k"]: one for one in map(codec.loads, job.store.get(PATHS.failed).splitlines())}


def command_of(said):
    """Return the last command that a message names, as words."""
    lines = re.findall(r"gen-producer (.+?)(?:\)|\s\s.*)?$", said.err, flags=re.MULTILINE)
    return lines[-1].split()


# What verify finds


def flip(data):
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.row("E11")
@pytest.mark.parametrize("redis_lost", [False, True])
@pytest.mark.parametrize("harm", ["deleted", "flipped"])
async def test_a_part_in_the_middle_is_put_back_or_made_again(lab, ask, harm, redis_lost):
    job, key = lab.job, PATHS.part(1, SUFFIX)
    await finish(lab)
    data, metadata = job.store.get(key), job.store.stat(key).metadata
    if harm == "deleted":
        job.store.delete(key)
        refused = await ask("load", "--run", RUN, code=9)  # which is no way out, and says so
        assert "delete it and all parts behind it" in refused.err
    else:
        job.store.put(key, flip(data), metadata=metadata)
    said = await ask("verify", RUN, code=9)
    assert key in said.err
    assert "Put it back from a copy" in said.err
    assert "Without one, delete it and all parts behind it" in said.err

    job.store.put(key, data, metadata=metadata)
    await ask("verify", RUN)

    for number in (1, 2):
        job.store.delete(PATHS.part(number, SUFFIX))
    if redis_lost:
        await job.redis.flushall()
    assert command_of(said) == ["load", "--run", RUN]
    mended = await ask(*command_of(said))
    assert "7 of 12 completions of the finished run are gone" in mended.err
    await look_anew(lab)
    assert (await job.counts()).queued == 7
    await finish(lab)
    await ask("verify", RUN)


@pytest.mark.row("E11")
async def test_a_sink_that_knew_a_lost_part_stores_what_is_made_again(lab, ask):
    job = lab.job
    await job.answer_all()
    lab.start(SinkService(lab.tools(), only=None, burst=False).serve())
    await eventually(lambda: asyncio.to_thread(marked, job), SECONDS)
    job.store.delete(PATHS.part(2, SUFFIX))
    said = await ask("verify", RUN, code=9)
    await ask(*command_of(said))
    await look_anew(lab)
    await job.answer_all()
    await eventually(lambda: asyncio.to_thread(marked, job), SECONDS)
    await proven(job)


async def test_no_end_is_written_of_what_storage_holds_no_longer(lab):
    """A part is deleted while its run goes on: the sink's ledger knows it, and its items."""
    job = lab.job
    await job.answer(await job.lease(5))
    serving = lab.start(SinkService(lab.tools(), only=None, burst=True).serve())
    await eventually(lambda: asyncio.to_thread(job.store.stat, PATHS.part(0, SUFFIX)), SECONDS)
    await eventually(lambda: is_committed(job, 5), SECONDS)
    job.store.delete(PATHS.part(0, SUFFIX))
    await job.bury(await job.lease(ROWS - 5))
    with pytest.raises(VerifyError) as refused:
        await asyncio.wait_for(serving, SECONDS)
    assert f"gen-producer load --run {RUN}" in refused.value.fix
    assert not marked(job)


async def is_committed(job, count):
    return (await job.counts()).committed == count


@pytest.mark.parametrize("lies", [False, True])
async def test_an_index_is_written_again(lab, ask, lies):
    job, key = lab.job, PATHS.index(1)
    await finish(lab)
    index = job.store.get(key)
    if lies:
        job.store.put(key, index.replace(b'"rows":5', b'"rows":4'))
    else:
        job.store.delete(key)
    said = await ask("verify", RUN, code=9)
    assert f"delete {key} first" in said.err
    job.store.delete(key)
    await ask("load", "--run", RUN)
    await ask("verify", RUN)
    assert codec.loads(job.store.get(key)) == codec.loads(index)


@pytest.mark.parametrize("redis_lost", [False, True])
@pytest.mark.parametrize("name", ["failed", "manifest", "success"])
async def test_the_last_objects_are_written_again(lab, ask, name, redis_lost):
    job = lab.job
    await finish_with_dead_letters(lab)
    before = letters(job)
    if name == "success":
        job.store.put(PATHS.success, b"junk")
    else:
        job.store.delete(getattr(PATHS, name))
    if redis_lost:
        await job.redis.flushall()
    said = await ask("verify", RUN, code=9)
    assert command_of(said) == ["load", "--run", RUN]
    await ask(*command_of(said))
    if redis_lost and name == "failed":  # nobody knows any more that they were given up
        await finish(lab)
    else:
        await finish(lab, dead=2)
        assert letters(job) == before
    await ask("verify", RUN, "--allow-failures")


async def test_a_stray_file_is_to_be_moved(lab, ask):
    await finish(lab)
    key = f"{PATHS.data_prefix}notes.txt"
    lab.job.store.put(key, b"")
    said = await ask("verify", RUN, code=9)
    assert f"Move {lab.job.store.url}/{key} elsewhere" in said.err
    lab.job.store.delete(key)
    await ask(*command_of(said))


def test_a_lost_prompt_shard_is_made_again_from_its_data_set(producer, tmp_path, store):
    rows = tmp_path / "rows.jsonl"
    write(rows, 5)
    producer(*LOAD, rows)
    (shard,) = store.list(f"{RUN}/prompts/")
    store.delete(shard.key)
    said = producer("verify", RUN, code=9)
    assert "also made again from the data set" in said.err
    words = [str(rows) if word == "DATASET" else word for word in command_of(said)]
    producer(*words, "--model", "m")
    assert "/prompts/" not in producer("verify", RUN, code=9).err  # it is only not finished


# Dead letters after a loss of Redis


@pytest.mark.row("C4")
async def test_dead_letters_of_a_run_that_redis_lost_are_shown_and_queued(lab, ask):
    job = lab.job
    await finish_with_dead_letters(lab)
    shown = json.loads((await ask("failed", RUN, "--json")).out)
    await job.redis.flushall()
    assert "gen-producer failed rows" in (await ask("verify", RUN, code=8)).err
    said = await ask("failed", RUN)
    assert "2 dead:" in said.out
    assert "this is from failed.jsonl" in said.err
    again = json.loads((await ask("failed", RUN, "--json")).out)
    for one in (shown, again):
        for letter in one["failures"]:
            letter["at"] = round(letter["at"], 3)
    assert again == shown
    would = await ask("requeue", RUN, "--dry-run")
    assert "2 dead letters of run rows would be queued again" in would.out
    assert marked(job)
    assert json.loads((await ask("requeue", RUN, "--json")).out)["requeued"] == 2
    assert not marked(job)
    await finish(lab)


@pytest.mark.row("C4")
@pytest.mark.parametrize("chosen", [("--reason", "too_long"), ("--id", 0)])
async def test_of_a_run_that_redis_lost_only_the_chosen_are_queued(lab, ask, chosen):
    job = lab.job
    await finish_with_dead_letters(lab)
    before = letters(job)
    await job.redis.flushall()
    none = await ask("requeue", RUN, "--reason", "empty")
    assert "0 dead letters of class empty" in none.out
    assert marked(job)
    assert json.loads((await ask("requeue", RUN, *chosen, "--json")).out)["requeued"] == 1
    await look_anew(lab)
    counts = await job.counts()
    assert (counts.state, counts.queued, counts.dead, counts.committed) == ("open", 1, 1, 10)
    assert (await job.runs.trace(job.run, Item(0))).place == "queued"
    await finish(lab, dead=1)
    assert letters(job) == {1: before[1]}


async def test_what_storage_does_not_prove_is_not_put_back(lab, ask):
    job = lab.job
    await finish_with_dead_letters(lab)
    await job.redis.flushall()
    lines = job.store.get(PATHS.failed).splitlines(keepends=True)
    job.store.put(PATHS.failed, lines[0])
    said = await ask("requeue", RUN, code=9)
    assert "1 items are neither committed nor in failed.jsonl" in said.err
    job.store.put(PATHS.failed, b"".join([*lines, lines[0]]))
    assert "Item 0 is in failed.jsonl, and elsewhere" in (await ask("requeue", RUN, code=9)).err
    assert marked(job)
    assert not await job.redis.keys("*")
    job.store.delete(PATHS.success)  # it goes on, and Redis has lost it
    for command in ("requeue", "failed"):
        assert "gen-producer load --run rows" in (await ask(command, RUN, code=2)).err


async def test_an_end_that_a_sleeping_sink_writes_meanwhile_is_taken_away(lab, ask, monkeypatch):
    job, enqueue = lab.job, Enqueuer.enqueue
    await finish_with_dead_letters(lab)
    await job.redis.flushall()
    success = job.store.get(PATHS.success)

    async def late(self, **options):
        done = await enqueue(self, **options)
        job.store.put(PATHS.success, success)
        return done

    monkeypatch.setattr(Enqueuer, "enqueue", late)
    await ask("requeue", RUN)
    assert not marked(job)


@pytest.mark.parametrize(
    "name", points_of("test_a_requeue_killed_after_a_loss_of_redis_loses_nothing")
)
async def test_a_requeue_killed_after_a_loss_of_redis_loses_nothing(lab, ask, producer, name):
    await finish_with_dead_letters(lab)
    await lab.job.redis.flushall()
    words = ("requeue", RUN, "--reason", "too_long")
    await asyncio.to_thread(producer.killed_at, name, *words)
    assert not marked(lab.job)
    if name == "requeue.after_buried":
        assert "not loaded whole: gen-producer load --run rows" in (await ask(*words)).out
    await ask("load", "--run", RUN)
    await look_anew(lab)
    dead = (await lab.job.counts()).dead
    assert dead == (0 if name == "requeue.success_gone" else 1)
    await finish(lab, dead=dead)


@pytest.mark.parametrize("name", points_of("test_a_mending_load_killed_in_the_middle_goes_on"))
async def test_a_mending_load_killed_in_the_middle_goes_on(lab, ask, producer, name):
    await finish(lab)
    lab.job.store.delete(PATHS.part(2, SUFFIX))
    await asyncio.to_thread(producer.killed_at, name, "load", "--run", RUN)
    await ask("load", "--run", RUN)
    await look_anew(lab)
    assert (await lab.job.counts()).queued == 2
    await finish(lab)
