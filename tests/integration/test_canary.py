"""The canary on a real Valkey: the first rows hold the run, early, once, for good reasons only."""

from __future__ import annotations

import asyncio
import random

import pytest

from common.ids import Token, new_nonce
from common.keys import RunKeys
from common.queue.canary import canary_facts
from common.queue.prompts import PromptQueue
from common.records import DEFAULT_POLICIES, Failure, Finished, Verdict
from tests.support.queues import ONE, RUN, TWO, manifest

KEYS = RunKeys(RUN)
ROWS = 2000


async def state(bench):
    return (await bench.runs.get(RUN)).state


async def answer(bench, leased, verdict=Verdict.OK, worker=ONE):
    batch = [Finished(one.item, one.token, verdict, b"text", 1, 1) for one in leased]
    return await bench.queue.complete(worker, batch, request=new_nonce())


def keeping(*classes):
    policies = {str(name): str(policy) for name, policy in DEFAULT_POLICIES.items()}
    return policies | dict.fromkeys(classes, "keep")


async def test_twenty_of_the_first_twenty_empty_hold_the_run(bench):
    await bench.load(ROWS)
    for bad in range(20):
        assert await state(bench) == "open", bad
        await bench.fail(await bench.lease(), Verdict.EMPTY)
    counts = await bench.counts()
    assert counts.state == "held"
    assert counts.hold_reason == "20 of the first 20 rows went wrong (100 %): 20 empty"
    assert await bench.lease(100) == []
    assert (counts.canary.held_for, counts.canary.worst) == ("faults", "empty")


async def test_of_a_crowd_of_consumers_none_overshoots_and_no_race_holds_it_twice(bench):
    """300 consumers with work in flight: what is leased may finish, and nothing more is leased."""
    await bench.load(ROWS)
    chance, calls = random.Random(7), asyncio.Semaphore(20)

    async def consume(number):
        worker = f"{ONE}-{number}"
        finished = 0
        while True:
            async with calls:
                leased = await bench.queue.lease(worker, 2, request=new_nonce())
            if not leased:
                return finished
            for one in leased:
                await asyncio.sleep(chance.random() / 10)  # lasts: an answer
                finished += 1
                failed = Failure(one.item, one.token, Verdict.EMPTY, "no text", charged=True)
                async with calls:
                    if chance.random() < 0.87:
                        await bench.queue.fail(worker, [failed])
                    else:
                        await answer(bench, [one], worker=worker)

    made = await asyncio.gather(*(consume(number) for number in range(300)))
    counts = await bench.counts()
    assert counts.state == "held"
    assert sum(made) <= 600 + 200  # all that may be in flight at once, and the watched
    assert counts.canary.finished == 200  # those in flight are counted, too
    assert counts.canary.classes["empty"] == counts.canary.faults > 100
    await bench.runs.accept(RUN)
    assert await state(bench) == "open"
    for one in await bench.lease(50):
        await bench.fail([one], Verdict.EMPTY)
    assert await state(bench) == "open"
    assert not bench.sync.exists(KEYS.canary)


async def test_faults_that_finish_first_weigh_no_more_than_they_are(bench):
    """Too long rows end at once: 3 % of all are the first hundred to finish."""
    await bench.load(ROWS)
    leased = await bench.lease(1000)
    bad = [one for one in leased if one.item % 33 == 0]
    await bench.fail(bad, Verdict.TOO_LONG, final=True)
    assert await state(bench) == "open"
    for at in range(0, 400, 20):
        await answer(bench, [one for one in leased[at : at + 20] if one not in bad])
    counts = await bench.counts()
    assert (counts.state, counts.canary.state, counts.canary.faults) == ("open", "passed", 7)


async def test_half_of_the_first_rows_truncated_hold_the_run(bench):
    await bench.load(ROWS)
    rounds = 0
    while leased := await bench.lease(10):
        rounds += 1
        await answer(bench, leased[:6], Verdict.TRUNCATED)
        await answer(bench, leased[6:])
    counts = await bench.counts()
    assert (counts.state, counts.canary.held_for, rounds) == ("held", "truncated", 17)
    assert counts.hold_reason.startswith("102 of the first 170 rows went wrong (60 %): ")
    for _ in range(2):  # as where the first answer was lost
        await bench.runs.accept(RUN)
    await answer(bench, await bench.lease(30), Verdict.TRUNCATED)
    assert await state(bench) == "open"


async def test_after_faults_were_accepted_truncation_may_still_hold_the_run(bench):
    await bench.load(ROWS, canary_rows=20, canary_truncated=0.5)
    leased = await bench.lease(20)
    await bench.fail(leased[:5], Verdict.LOOPING)
    assert await state(bench) == "held"
    await bench.runs.accept(RUN)
    await answer(bench, leased[5:14], Verdict.TRUNCATED)
    assert await state(bench) == "open"
    await answer(bench, leased[14:15], Verdict.TRUNCATED)
    counts = await bench.counts()
    assert (counts.state, counts.canary.held_for) == ("held", "truncated")
    assert counts.canary.accepted == ("faults",)


async def test_what_is_cut_off_and_not_kept_is_a_fault_and_accepted_with_the_faults(bench):
    dead = keeping("looping") | {"truncated": "dead"}
    await bench.load(ROWS, canary_rows=20, canary_truncated=0.5, policies=dead)
    leased = await bench.lease(20)
    await bench.fail(leased[:5], Verdict.TRUNCATED)
    counts = await bench.counts()
    assert (counts.state, counts.canary.held_for) == ("held", "faults")
    assert counts.canary.worst == "truncated"
    for _ in range(2):  # as where the first answer was lost
        await bench.runs.accept(RUN)
    await bench.fail(leased[5:], Verdict.TRUNCATED)
    assert await state(bench) == "open"
    facts = canary_facts(manifest(100, policies=dead), ("faults",))  # after a loss of Redis
    assert facts["canary_truncated"] == 0


async def test_kept_classes_engine_faults_and_late_tries_are_no_fault(bench):
    await bench.load(ROWS, canary_rows=30, policies=keeping("looping"))
    leased = await bench.lease(30)
    await answer(bench, leased[:8], Verdict.LOOPING)
    await bench.fail(leased[8:16], Verdict.TIMEOUT, charged=False)
    await bench.fail(leased[16:24], Verdict.ENGINE_DOWN, charged=False, engine_died=True)
    await bench.fail(leased[24:28], Verdict.EMPTY)  # one more would hold it
    again = Failure(leased[24].item, Token("old"), Verdict.EMPTY, "late", charged=True)
    await bench.queue.fail(TWO, [again])
    counts = await bench.counts()
    assert (counts.state, counts.canary.faults, counts.canary.finished) == ("open", 4, 12)
    assert counts.canary.classes == {"looping": 8, "empty": 4}


async def test_a_retried_row_counts_once_as_the_fault_that_it_was(bench):
    await bench.load(10, limits=None, attempts=9)
    for _ in range(4):
        (one,) = await bench.lease()
        await bench.fail([one], Verdict.EMPTY)
        bench.sync.zadd(KEYS.scheduled, {f"{RUN}-{one.item}": 0})
        await bench.queue.reap()
        bench.sync.lmove(KEYS.queue, KEYS.queue, "RIGHT", "LEFT")
        bench.sync.delete(KEYS.reap_lock)
    counts = await bench.counts()
    assert (counts.state, counts.canary.faults) == ("open", 1)


async def test_a_small_run_is_watched_and_a_tiny_one_ends_by_itself(bench):
    await bench.load(12)
    await bench.fail(await bench.lease(5), Verdict.EMPTY)
    assert await state(bench) == "held"
    bench.sync.flushall()
    await bench.load(4)
    await bench.fail(await bench.lease(4), Verdict.EMPTY, final=True)
    assert (await bench.counts()).dead == 4
    assert await bench.runs.close(RUN)


async def test_it_can_be_switched_off(bench):
    await bench.load(ROWS, canary_rows=0)
    await bench.fail(await bench.lease(500), Verdict.EMPTY)
    assert await state(bench) == "open"
    assert not bench.sync.exists(KEYS.canary)


async def test_a_run_that_was_paused_meanwhile_is_held_all_the_same(bench):
    await bench.load(ROWS)
    leased = await bench.lease(30)
    await bench.runs.pause(RUN)
    await bench.fail(leased, Verdict.EMPTY)
    assert await bench.runs.resume(RUN) == "held"
    assert await bench.lease() == []


async def test_after_a_loss_of_redis_what_remains_is_watched_anew(bench):
    info = await bench.runs.create(manifest(100))
    await bench.runs.restore(RUN, info.epoch, committed=b"\xff" * 5)
    bench.queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    await bench.queue.enqueue(0)
    await bench.runs.open(RUN)
    assert (await bench.counts()).canary.rows == 60
    await bench.fail(await bench.lease(6), Verdict.EMPTY)
    assert await state(bench) == "held"


async def test_what_was_accepted_before_a_loss_of_redis_stays_accepted(bench):
    info = await bench.runs.create(manifest(100), accepted=("faults",))
    bench.queue = PromptQueue(bench.client, RUN, info.epoch, bench.limits)
    await bench.queue.enqueue(0)
    await bench.runs.open(RUN)
    leased = await bench.lease(100)
    await bench.fail(leased[:50], Verdict.EMPTY)
    assert await state(bench) == "open"
    await answer(bench, leased[50:75], Verdict.TRUNCATED)
    await answer(bench, leased[75:], Verdict.TRUNCATED)
    assert (await bench.counts()).canary.held_for == "truncated"


async def test_a_run_that_was_cancelled_while_held_is_watched_anew(bench):
    info = await bench.load(100)
    await bench.fail(await bench.lease(10), Verdict.EMPTY)
    await bench.runs.cancel(RUN)
    await bench.runs.reopen(RUN)
    await bench.queue.enqueue(0)
    await bench.runs.open(RUN)
    counts = await bench.counts()
    assert (counts.state, counts.canary.state, counts.canary.finished) == ("open", "watching", 0)
    assert info.epoch == counts.epoch
    await bench.fail(await bench.lease(10), Verdict.EMPTY)
    assert await state(bench) == "held"


async def test_a_run_of_an_older_release_has_no_canary(bench):
    await bench.load(ROWS)
    for name in ("canary", "canary_rows", "canary_keep", "canary_faults", "canary_truncated"):
        bench.sync.hdel(KEYS.meta, name)
    await bench.fail(await bench.lease(100), Verdict.EMPTY)
    await bench.runs.pause(RUN)
    await bench.runs.accept(RUN)
    counts = await bench.counts()
    assert (counts.state, counts.canary.state) == ("open", "off")


@pytest.mark.parametrize("share", [0.0, 1.0])
async def test_a_share_of_nought_never_holds_and_of_one_only_where_all_are_bad(bench, share):
    await bench.load(10, canary_faults=share)
    leased = await bench.lease(10)
    await bench.fail(leased[:9], Verdict.EMPTY)
    assert await state(bench) == "open"
    await bench.fail(leased[9:], Verdict.EMPTY)
    assert await state(bench) == ("held" if share else "open")
