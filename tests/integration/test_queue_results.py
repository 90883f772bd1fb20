"""What becomes of results and of failures, one promise a test, on a real server."""

from __future__ import annotations

import random
import string

import pytest

from common.ids import Token, job_id
from common.keys import RunKeys
from common.queue.failures import RECORD_BYTES, decode_reason, encode_reason
from common.queue.prompts import FailOutcome, Outcome, QueueLimits
from common.records import Failure, Verdict
from tests.support.queues import (
    ONE,
    RUN,
    TWO,
    let_time_pass,
    places,
)

KEYS = RunKeys(RUN)


# Results


async def test_the_first_result_wins_whoever_brings_it(bench):
    await bench.load()
    old = await bench.lease()
    await bench.expire()
    new = await bench.lease(1, TWO)
    assert await bench.complete(old) == [Outcome.FIRST]
    assert await bench.queue.extend(TWO, [(new[0].item, new[0].token)]) == [0]
    assert await bench.complete(new, TWO) == [Outcome.DUPLICATE]
    counts = await bench.counts()
    assert (counts.generated, counts.leased, counts.wasted_tokens) == (1, 0, 1)


async def test_a_late_result_is_taken_from_wherever_the_item_is(bench):
    await bench.load(items=4, attempts=2)
    waiting, dead, queued, deep = held = await bench.lease(4)
    await bench.expire()
    await bench.fail((await bench.lease(1, TWO)), worker=TWO)
    await bench.fail((await bench.lease(1, TWO)), worker=TWO, final=True)
    assert {item: where[0] for item, where in places(bench.sync, RUN).items()} == {
        0: "waiting",
        1: "dead",
        2: "queued",
        3: "queued",
    }
    assert await bench.complete(held) == [Outcome.FIRST] * 4
    assert {waiting.item, dead.item, queued.item, deep.item} == {0, 1, 2, 3}
    counts = await bench.counts()
    assert (counts.generated, counts.ghosts) == (4, 0)
    assert await bench.runs.failures_by_class(RUN) == {}


async def test_an_id_too_deep_in_the_queue_becomes_a_ghost_until_lease_meets_it(bench):
    await bench.load(2500)
    held = await bench.lease()
    await bench.fail(held)
    let_time_pass(bench.sync, RUN, 400)
    assert (await bench.queue.reap()).promoted == 1
    assert await bench.complete(held) == [Outcome.FIRST]
    counts = await bench.counts()
    assert (counts.ghosts, counts.queued, bench.sync.llen(KEYS.queue)) == (1, 2499, 2500)
    assert bench.sync.ttl(f"{KEYS.job_prefix}0") == -1  # RQ's tools delete ids without a hash
    leased = [one.item for _ in range(3) for one in await bench.lease(1000)]
    assert sorted(leased) == list(range(1, 2500))
    assert (await bench.counts()).ghosts == 0
    assert not bench.sync.exists(f"{KEYS.job_prefix}0")


async def test_a_commit_withdraws_the_item_from_wherever_it_is(bench):
    await bench.load()
    held = await bench.lease(2)
    await bench.complete(held[:1])
    entries = await bench.stream.read("sink", 9, block_ms=None)
    # Redis went back to a moment before the result: the sink has it all the same.
    bench.sync.delete(KEYS.stream)
    bench.sync.setbit(KEYS.done, 0, 0)
    bench.sync.hset(KEYS.counts, "stream_bytes", 0)
    bench.sync.lpush(KEYS.queue, job_id(RUN, 0))
    assert await bench.stream.commit(entries) == 1
    assert await bench.stream.commit(entries) == 0
    counts = await bench.counts()
    assert (counts.committed, counts.queued, counts.leased) == (1, 18, 1)


async def test_a_commit_takes_no_entry_that_is_another_items(bench):
    await bench.load()
    await bench.complete(await bench.lease(2))
    first, second = await bench.stream.read("sink", 9, block_ms=None)
    swapped = type(first)(second.entry_id, first.item, first.payload)
    assert await bench.stream.commit([swapped]) == 0  # its own result is there, to be brought
    assert [entry.item for entry in await bench.stream.pending("sink")] == [0, 1]
    assert (await bench.counts()).committed == 0
    assert await bench.stream.commit([first, second]) == 2


async def test_results_of_a_dead_sink_are_claimed(bench):
    await bench.load()
    await bench.complete(await bench.lease(3))
    await bench.stream.read("dead", 2, block_ms=None)
    assert await bench.stream.claim("alive", idle_seconds=60, count=9) == []
    claimed = await bench.stream.claim("alive", idle_seconds=0, count=9)
    assert [entry.item for entry in claimed] == [0, 1]
    assert await bench.stream.pending("dead") == []
    assert await bench.stream.pending("alive") == claimed


async def test_a_missing_group_is_made_and_loses_nothing(bench):
    await bench.load()
    await bench.complete(await bench.lease(3))
    bench.sync.xgroup_destroy(KEYS.stream, "sink")
    assert len(await bench.stream.read("sink", 9, block_ms=None)) == 3


async def test_a_rejected_result_is_a_dead_letter_with_its_reason(bench):
    await bench.load()
    await bench.complete(await bench.lease())
    (entry,) = await bench.stream.read("sink", 9, block_ms=None)
    await bench.stream.reject(entry, Verdict.MALFORMED, "no such encoding")
    await bench.stream.reject(entry, Verdict.MALFORMED, "no such encoding")
    counts = await bench.counts()
    assert (counts.dead, counts.generated, counts.verdicts) == (1, 0, {})
    (failure,) = await bench.runs.failures(RUN, limit=9)
    assert (failure.item, failure.verdict, failure.text) == (0, "malformed", "no such encoding")


async def test_a_rejected_result_of_a_ghost_is_dead_and_stays_so(bench):
    await bench.load(2500)
    held = await bench.lease()
    await bench.fail(held)
    let_time_pass(bench.sync, RUN, 400)
    await bench.queue.reap()
    await bench.complete(held)
    assert (await bench.counts()).ghosts == 1
    (entry,) = await bench.stream.read("sink", 9, block_ms=None)
    await bench.stream.reject(entry, Verdict.MALFORMED, "no such encoding")
    counts = await bench.counts()
    assert (counts.dead, counts.ghosts, counts.queued) == (1, 0, 2499)
    leased = [one.item for _ in range(3) for one in await bench.lease(1000)]
    assert sorted(leased) == list(range(1, 2500))
    assert (await bench.counts()).dead == 1


# Failures


async def test_attempts_are_used_up_one_by_one_and_each_wait_is_longer(bench):
    await bench.load(items=1)
    waits = []
    for attempt in (1, 2):
        (held,) = await bench.lease()
        assert (held.attempt, held.delivery) == (attempt, attempt)
        assert await bench.fail([held]) == [FailOutcome.RETRY]
        due = bench.sync.zscore(KEYS.scheduled, job_id(RUN, 0))
        waits.append(due - bench.sync.time()[0])
        let_time_pass(bench.sync, RUN, 400)
        assert (await bench.queue.reap()).promoted == 1
    assert 1 < waits[0] < 9
    assert 4 < waits[1] < 17
    assert await bench.fail(await bench.lease()) == [FailOutcome.DEAD]
    counts = await bench.counts()
    assert (counts.dead, counts.failures) == (1, {"empty": 3})


async def test_an_old_or_a_foreign_token_fails_nothing(bench):
    await bench.load()
    old = await bench.lease()
    await bench.expire()
    await bench.lease(1, TWO)
    assert await bench.fail(old) == [FailOutcome.STALE]
    assert await bench.queue.release(ONE, [(0, Token("0" * 18))]) == 0
    assert (await bench.counts()).leased == 1


async def test_engine_faults_charge_no_attempt_but_deliveries_are_limited(bench):
    await bench.load(items=1, limits=QueueLimits(max_deliveries=3))
    outcomes = []
    for _ in range(3):
        held = await bench.lease()
        assert held[0].attempt == 1
        outcomes += await bench.fail(held, Verdict.TIMEOUT, charged=False)
    assert outcomes == [FailOutcome.RELEASED, FailOutcome.RELEASED, FailOutcome.DEAD]


async def test_a_busy_engine_counts_no_delivery(bench):
    await bench.load(items=1, limits=QueueLimits(max_deliveries=3))
    for _ in range(6):
        held = await bench.lease()
        assert await bench.fail(held, Verdict.BUSY, charged=False) == [FailOutcome.RELEASED]
    assert (await bench.lease())[0].delivery == 1


async def test_from_the_third_death_on_only_deaths_alone_count(bench):
    await bench.load(items=1)

    async def die(*, alone):
        held = await bench.lease()
        more = {"charged": False, "engine_died": True, "alone": alone}
        return (await bench.fail(held, Verdict.ENGINE_DOWN, **more))[0], held[0].deaths

    assert [await die(alone=False) for _ in range(5)] == [
        (FailOutcome.RELEASED, deaths) for deaths in (0, 1, 2, 3, 3)
    ]
    assert [await die(alone=True) for _ in range(3)] == [
        (FailOutcome.RELEASED, 3),
        (FailOutcome.RELEASED, 4),
        (FailOutcome.DEAD, 5),
    ]


async def test_requeue_gives_chosen_dead_items_a_fresh_budget(bench):
    await bench.load()
    await bench.fail(await bench.lease(2), Verdict.TOO_LONG, final=True)
    await bench.fail(await bench.lease(2), Verdict.EMPTY, final=True)
    assert await bench.runs.failures_by_class(RUN) == {"too_long": 2, "empty": 2}
    assert await bench.runs.requeue(RUN, verdict=Verdict.EMPTY) == 2
    assert await bench.runs.requeue(RUN, items=[0, 7]) == 1
    assert await bench.runs.requeue(RUN) == 1
    assert (await bench.counts()).queued == 20
    assert {one.attempt for one in await bench.lease(20)} == {1}


def test_a_reason_is_cut_to_what_it_may_take():
    noise = "".join(random.Random(1).choices(string.printable, k=5000))
    for text in ("", "short", "é" * 5000, "\ud800 alone", noise):
        record = encode_reason(text)
        assert len(record) <= RECORD_BYTES
        assert decode_reason(record)[:20] == text.encode("utf-8", "replace").decode()[:20]
    assert len(decode_reason(encode_reason("a" * 5000))) == 2000


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(10_000, marks=pytest.mark.faults)], ids=["some", "all"]
)
async def test_ten_thousand_failures_take_less_than_twenty_megabytes(bench, count):
    await bench.load(count, canary_rows=0)
    noise = random.Random(1)
    before = bench.sync.info("memory")["used_memory"]
    for _ in range(count // 100):
        held = await bench.lease(100)
        await bench.queue.fail(
            ONE,
            [
                Failure(
                    one.item,
                    one.token,
                    Verdict.EMPTY,
                    "".join(noise.choices(string.printable, k=2500)),
                    charged=True,
                    final=True,
                )
                for one in held
            ],
        )
    grown = bench.sync.info("memory")["used_memory"] - before
    print(f"{grown / 1e6:.1f} MB for {count} failures")
    assert grown < 2_000 * count + (
        500_000 if count < 10_000 else 0
    )  # buffers of the connections come on top
    assert (await bench.counts()).dead == count
