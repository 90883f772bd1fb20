"""What is kept by verdict, after Redis or storage lost some of it: told right, or not at all."""

from __future__ import annotations

import asyncio
import json

import pytest

from common.ids import Item, new_nonce
from common.objectstore import RunPaths
from common.queue.prompts import PromptQueue
from common.records import Finished, Verdict
from tests.support.completions import completion, payload
from tests.support.loads import RUN
from tests.support.queues import ONE
from tests.support.queues import RUN as BENCH_RUN
from tests.support.servers import eventually
from tests.support.sinks import WORKER, load_job, local_lab, proven

ROWS = 12  # and five a part: three parts
PATHS = RunPaths(RUN)
SECONDS = 30
CUT = Verdict.TRUNCATED


# What the queue counts


async def answer(bench, count, verdict):
    held = await bench.lease(count)
    batch = [Finished(one.item, one.token, verdict, b"text", 1, 1) for one in held]
    await bench.queue.complete(ONE, batch, request=new_nonce())


async def kept(bench):
    return (await bench.counts()).kept


async def test_what_was_stored_before_a_loss_counts_once_storage_was_read(bench):
    info = await bench.load(20)
    assert await kept(bench) == {}
    bench.sync.flushall()
    info = await bench.load(20)
    await bench.runs.restore(BENCH_RUN, info.epoch, committed=b"\xf0")
    assert await kept(bench) is None
    assert await bench.queue.recount({"ok": 1, CUT: 3})
    assert await kept(bench) == {"ok": 1, CUT: 3}
    await answer(bench, 2, CUT)
    await bench.commit_all()
    counts = await bench.counts()
    assert (counts.kept, counts.verdicts) == ({"ok": 1, CUT: 5}, {CUT: 2})
    assert await bench.queue.recount({"ok": 1, CUT: 5})
    assert await kept(bench) == {"ok": 1, CUT: 5}


async def test_what_storage_lost_does_not_count_once_the_rest_was_read(bench):
    info = await bench.load(20)
    await answer(bench, 6, CUT)
    await answer(bench, 4, Verdict.OK)
    await bench.commit_all()
    await answer(bench, 2, Verdict.OK)  # on their way while it is mended
    await bench.runs.uncommit(BENCH_RUN, info.epoch, [Item(k) for k in range(4)])
    assert await kept(bench) is None
    assert await bench.queue.recount({"ok": 4, CUT: 2})
    counts = await bench.counts()
    assert (counts.kept, counts.verdicts) == ({"ok": 6, CUT: 2}, {"ok": 6, CUT: 6})
    first, second = await bench.stream.read("sink", 2, block_ms=None)
    await bench.stream.reject(first, Verdict.MALFORMED, "cannot be stored")
    await bench.stream.commit([second])
    assert await kept(bench) == {"ok": 5, CUT: 2}


async def test_parts_read_at_another_moment_leave_the_counts_unknown(bench):
    info = await bench.load(20)
    await answer(bench, 6, CUT)
    await bench.commit_all()
    await bench.runs.uncommit(BENCH_RUN, info.epoch, [Item(0)])
    await answer(bench, 1, Verdict.OK)
    await bench.commit_all()
    assert not await bench.queue.recount({CUT: 5})
    assert await kept(bench) is None
    assert await bench.queue.recount({CUT: 5, "ok": 1})


async def test_a_result_that_only_storage_knows_makes_the_counts_unknown(bench):
    info = await bench.load(20)
    await answer(bench, 2, CUT)
    await bench.commit_all()
    await bench.runs.restore(BENCH_RUN, info.epoch, committed=b"\xe0")
    assert await kept(bench) is None


# What the commands say


@pytest.fixture
async def lab(settings):
    job = await load_job(settings, RUN, rows=ROWS)
    async with local_lab(settings, job) as made:
        yield made


async def make(lab, count, verdict):
    """Answer items of the run as Redis has it now: a load may have given it another epoch."""
    job = lab.job
    job.info = await job.runs.get(job.run)
    job.queue = PromptQueue(job.redis, job.run, job.info.epoch, lab.settings.limits())
    batch = [
        Finished(item, token, verdict, payload(completion(item, verdict=str(verdict))), 3, 2)
        for item, token in await job.lease(count)
    ]
    assert len(batch) == count
    await job.queue.complete(WORKER, batch, request=new_nonce())


async def finish(lab):
    await lab.finish(stop=asyncio.Event())
    await proven(lab.job)


async def flagged(ask):
    return json.loads((await ask("status", RUN, "--json")).out)["flagged"]


async def test_after_a_part_was_made_again_each_command_counts_what_is_there(lab, ask):
    await make(lab, ROWS, CUT)
    await finish(lab)
    lab.job.store.delete(PATHS.part(2, "jsonl.zst"))
    await ask("load", "--run", RUN)
    assert "10 of 12; kept but flagged: 10 truncated" in (await ask("status", RUN)).out
    await make(lab, 2, Verdict.OK)
    await finish(lab)
    said = (await ask("requeue", RUN, "--reason", "truncated", "--json")).out
    assert json.loads(said)["requeued"] == 0
    assert "10 completions are kept" in (await ask("requeue", RUN, "--reason", "truncated")).out
    assert await flagged(ask) == {"truncated": 10}


async def test_after_a_loss_of_redis_each_command_counts_what_is_there(lab, ask):
    job = lab.job
    await make(lab, 10, CUT)
    serving = lab.start(lab.finish())

    async def stored():
        return (await job.counts()).committed == 10

    await eventually(stored, SECONDS)
    lab.stop.set()
    await serving
    await job.redis.flushall()
    await ask("load", "--run", RUN)
    assert "10 of 12; kept but flagged: 10 truncated" in (await ask("status", RUN)).out
    await make(lab, 2, CUT)
    await finish(lab)
    assert "12 completions are kept" in (await ask("requeue", RUN, "--reason", "truncated")).out


async def test_what_is_not_known_is_not_told(lab, ask):
    """As a sink leaves it that tells Redis what it has forgotten."""
    job = lab.job
    await make(lab, 4, CUT)
    await job.runs.restore(job.run, job.info.epoch, committed=b"\x00\x10")
    said = (await ask("status", RUN)).out
    assert "1 of 12; how many are flagged is not known" in said
    assert await flagged(ask) is None
    said = (await ask("requeue", RUN, "--reason", "truncated")).out
    assert f"are kept as truncated: gen-producer verify {RUN}" in said
