"""One item to one outcome: policies, who is charged, and what an engine may do."""

from __future__ import annotations

import asyncio

import pytest

from common.codec import dumps
from common.records import Policy, Sampling, Verdict
from consumer.engine.api import Reply
from consumer.generation.render import Prompts
from consumer.generation.runner import Ready
from tests.support.runners import FACTS, Bytes, build, completion, run, work
from tests.support.servers import eventually


async def test_a_good_answer_becomes_a_completion_with_all_that_was_seen_and_said() -> None:
    ended = await run(work("hi", sampling=Sampling(max_tokens=9)), ("Paris.", "stop"))
    record = completion(ended)
    assert ended.finished.verdict is Verdict.OK
    assert (record["k"], record["row"], record["row_id"], record["sample"]) == (3, 3, "mine", 0)
    assert bytes(record["input_ids"]) == b"user:hi"
    assert bytes(record["output_ids"]) == b"Paris."
    assert record["messages"] == [{"role": "user", "content": "hi"}]
    assert record["content"] == "Paris."
    assert record["usage"]["completion_tokens"] == ended.finished.completion_tokens == 6
    assert record["sampling"]["max_tokens"] == 9
    assert record["engine"] == "sglang 0.0"
    assert record["metadata"] == {"a": 1}


ANSWERS = {  # an answer of each class that has one
    Verdict.TRUNCATED: ("Par", "length"),
    Verdict.EMPTY: (" \n", "stop"),
    Verdict.THOUGHT_ONLY: ("<think>hm", "length"),
    Verdict.LOOPING: ("again and " * 20, "length"),
}


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("verdict", ANSWERS)
async def test_the_runs_policy_decides_about_a_row_fault(verdict, policy) -> None:
    ended = await run(work("hi", policies={str(verdict): str(policy)}), ANSWERS[verdict])
    if policy is Policy.KEEP:
        record = completion(ended)
        assert ended.finished.verdict is verdict
        assert record["verdict"] == verdict
        assert bytes(record["output_ids"]).decode() == ANSWERS[verdict][0]
    else:
        assert ended.finished is None
        assert ended.failure.verdict is verdict
        assert ended.failure.charged
        assert ended.failure.final is (policy is Policy.DEAD)
        assert ended.failure.completion_tokens == len(ANSWERS[verdict][0])


async def test_a_retry_of_what_was_cut_off_may_be_longer() -> None:
    limits = {"sampling": Sampling(max_tokens=5), "retry_max_tokens": 9}
    for attempt, limit in ((1, 5), (2, 9), (3, 9)):
        ended = await run(work("hi", attempt=attempt, **limits), ("ok", "stop"))
        assert completion(ended)["sampling"]["max_tokens"] == limit


async def test_an_engine_that_saw_fewer_tokens_is_no_success() -> None:
    async def short():
        answer = {"rid": None, "output_ids": [1], "text": "x", "finish_reason": "stop"}
        counts = {"prompt_tokens": 6, "completion_tokens": 1, "cached_tokens": 0, "detail": ""}
        return Reply(200, dumps(answer | counts))

    ended = await run(work("hi"), short)
    assert ended.failure.verdict is Verdict.INPUT_TRUNCATED
    assert ended.failure.charged


async def test_a_row_that_cannot_be_asked_is_dead_at_once() -> None:
    assert (await run(work("unspeakable"))).failure.verdict is Verdict.BAD_ROW
    too_long = (await run(work("x" * 300))).failure
    assert too_long.verdict is Verdict.TOO_LONG
    assert too_long.final
    nothing = await run(work())
    assert nothing.failure.verdict is Verdict.BAD_ROW


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (Reply(503, b"full"), Verdict.BUSY),
        (Reply(500, b"oops"), Verdict.MALFORMED),
        (Reply(200, b"<html>"), Verdict.MALFORMED),
        (("so far", "abort"), Verdict.ABORTED),
        (Reply(504, b""), Verdict.TIMEOUT),
    ],
)
async def test_engine_faults_are_never_charged(reply, verdict) -> None:
    ended = await run(work("hi"), reply)
    assert ended.engine_fault
    assert ended.failure.verdict is verdict
    assert not ended.failure.charged
    assert not ended.failure.engine_died


async def test_a_request_that_never_reached_the_engine_is_simply_given_back() -> None:
    ended = await run(work("hi"), Reply(None, b"", "refused", sent=False))
    assert ended.engine_fault
    assert ended.failure is None
    assert ended.finished is None


@pytest.mark.parametrize("deaths", [0, 3])
async def test_an_engine_that_dies_ends_its_requests_at_once(deaths) -> None:
    async def never():
        await asyncio.Event().wait()

    dialect, client, runner = build(never)
    task = asyncio.create_task(
        runner.run(work("hi", deaths=deaths), Ready(FACTS, Prompts(Bytes())))
    )
    await eventually(lambda: len(client) == 1)
    client.engine_down(1, "exit code 137", died=True)
    ended = await task
    assert ended.failure.verdict is Verdict.ENGINE_DOWN
    assert ended.failure.engine_died
    assert ended.failure.alone is (deaths >= 3)
    assert not ended.failure.charged
    assert dialect.aborted == []


async def test_an_engine_that_we_ended_is_no_death_of_the_item() -> None:
    async def never():
        await asyncio.Event().wait()

    _, client, runner = build(never)
    task = asyncio.create_task(runner.run(work("hi"), Ready(FACTS, Prompts(Bytes()))))
    await eventually(lambda: len(client) == 1)
    client.engine_down(1, "condemned", died=False)
    assert not (await task).failure.engine_died


async def test_a_cancelled_item_is_aborted_in_the_engine_by_its_rid() -> None:
    async def never():
        await asyncio.Event().wait()

    dialect, client, runner = build(never)
    task = asyncio.create_task(runner.run(work("hi"), Ready(FACTS, Prompts(Bytes()))))
    await eventually(lambda: len(client) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: dialect.aborted)
    assert dialect.aborted == [dialect.bodies[0]["rid"]]


async def test_a_retry_has_another_seed_and_a_rerun_the_same() -> None:
    seeds = []
    for attempt in (1, 2, 1):
        ended = await run(work("hi", attempt=attempt), ("ok", "stop"))
        seeds.append(completion(ended)["seed"])
    assert seeds[0] == seeds[2] != seeds[1]
