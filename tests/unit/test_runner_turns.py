"""Conversations: each turn from the ones generated before, and on from where one was broken off."""

from __future__ import annotations

import asyncio

import pytest

from common.build import build as build_record
from common.codec import compress, decompress, dumps, loads
from common.records import Completion, Policy, Sampling, Turn, Usage, Verdict
from consumer.engine.api import Reply
from consumer.generation.render import Prompts
from consumer.generation.runner import Ready
from tests.support.runners import (
    FACTS,
    Bytes,
    Kept,
    assistant,
    build,
    completion,
    run,
    user,
    work,
)
from tests.support.servers import eventually

ONE = Turn("one", "x", [1], [2], "stop", "ok", Usage(1, 20, 0, 5), seed=7)


async def test_turns_are_answered_one_by_one_without_earlier_thoughts() -> None:
    said = "<think>x</think>one"
    ended = await run(work("a", "b"), (said, "stop"), ("two", "stop"))
    record = completion(ended)
    assert [m["content"] for m in record["messages"]] == ["a", "one", "b"]
    assert record["content"] == "two"
    assert ended.finished.completion_tokens == len(said) + len("two")
    assert bytes(record["input_ids"]) == b"user:a|assistant:one|user:b"


async def test_a_trainer_finds_every_generated_turn_as_the_engine_said_it() -> None:
    said = "<think>x</think>one"
    ended = await run(work("a", "b", sampling=Sampling()), (said, "stop"), ("two", "stop"))
    whole = build_record(Completion, completion(ended))
    (turn,) = whole.turns
    assert (turn.content, turn.reasoning_content, turn.verdict) == ("one", "x", "ok")
    assert turn.usage == Usage(6, len(said), 0, len("<think>x</think>"))
    assert turn.seed == whole.seed
    pairs = [(bytes(masked), bytes(learned)) for masked, learned in whole.examples]
    assert pairs == [
        (b"user:a", said.encode()),
        (b"user:a|assistant:one|user:b", b"two"),
    ]
    assert whole.usage.completion_tokens == 3


async def test_a_flagged_earlier_turn_flags_the_completion() -> None:
    ended = await run(work("a", "b"), ("on", "length"), ("two", "stop"))
    assert ended.finished.verdict is Verdict.TRUNCATED


async def test_an_answer_of_the_row_is_replaced_and_its_thought_goes_nowhere() -> None:
    row = ["a", assistant("<think>secret</think>theirs", reasoning_content="secret"), "b"]
    ended = await run(work(*row), ("ours", "stop"), ("two", "stop"))
    record = completion(ended)
    assert record["messages"] == [user("a"), assistant("ours"), user("b")]
    assert "secret" not in str(record)
    assert "theirs" not in str(record)


# What was finished is not done again


async def test_each_finished_turn_but_the_last_is_kept() -> None:
    queue = Kept()
    _, _, runner = build(("one", "stop"), ("two", "stop"), ("three", "stop"))
    await runner.run(work("a", "b", "c", queue=queue), Ready(FACTS, Prompts(Bytes())))
    await runner.close()
    kept = loads(decompress(queue.packed, limit_bytes=1 << 20))
    assert [turn["content"] for turn in kept][:1] == ["one"]
    assert len(kept) <= 2


async def test_a_conversation_goes_on_at_the_turn_that_it_reached() -> None:
    queue = Kept(compress(dumps([ONE])))
    dialect, _, runner = build(("two", "stop"))
    item = work("a", "b", attempt=2, queue=queue)
    ended = await runner.run(item, Ready(FACTS, Prompts(Bytes())))
    assert [bytes(body["ids"]) for body in dialect.bodies] == [b"user:a|assistant:one|user:b"]
    whole = build_record(Completion, completion(ended))
    assert whole.turns == [ONE]
    assert ended.finished.completion_tokens == ONE.usage.completion_tokens + 3


async def test_the_last_turn_is_always_generated() -> None:
    """Whatever is kept: of another release, or of a row that was longer."""
    queue = Kept(compress(dumps([ONE, ONE, ONE])))
    ended = await run(work("a", "b", queue=queue), ("two", "stop"))
    assert [m["content"] for m in completion(ended)["messages"]] == ["a", "one", "b"]


async def test_one_turn_asks_redis_for_nothing() -> None:
    assert (await run(work("a", queue=object()), ("one", "stop"))).finished


@pytest.mark.parametrize("policy", [Policy.RETRY, Policy.DEAD])
async def test_turns_that_are_kept_are_no_waste_unless_this_is_the_end(policy) -> None:
    queue = Kept(compress(dumps([ONE])))
    item = work("a", "b", queue=queue, policies={"empty": str(policy)})
    failure = (await run(item, (" ", "stop"))).failure
    assert failure.completion_tokens == 1 + (20 if policy is Policy.DEAD else 0)


async def test_an_engine_fault_in_a_later_turn_leaves_what_is_kept() -> None:
    queue = Kept()
    _, _, runner = build(("one", "stop"), Reply(500, b"oops"))
    ended = await runner.run(work("a", "b", queue=queue), Ready(FACTS, Prompts(Bytes())))
    await runner.close()
    assert ended.engine_fault
    assert loads(decompress(queue.packed, limit_bytes=1 << 20))[0]["content"] == "one"


async def test_a_silent_redis_stops_no_conversation(monkeypatch) -> None:
    class Silent(Kept):
        async def saved_turns(self, *_args):
            await asyncio.Event().wait()

        save_turns = saved_turns

    monkeypatch.setattr("consumer.leases.progress.LOAD_SECONDS", 0.01)
    monkeypatch.setattr("consumer.leases.progress.CLOSE_SECONDS", 0.01)
    _, client, runner = build(("one", "stop"), ("two", "stop"))
    ended = await runner.run(work("a", "b", queue=Silent()), Ready(FACTS, Prompts(Bytes())))
    assert completion(ended)["content"] == "two"
    await runner.close()
    await eventually(lambda: len(client) == 0)


# Answers that are kept as they are


async def own(*messages, **settings):
    dialect, _, runner = build()
    item = work(*messages, keep_answers=True, queue=object(), **settings)
    ended = await runner.run(item, Ready(FACTS, Prompts(Bytes())))
    assert dialect.bodies == []  # no engine was asked
    return ended


async def test_kept_answers_are_tokenized_and_nothing_is_generated() -> None:
    ended = await own("a", assistant("one"), "b", assistant("two", reasoning_content="hm"))
    record = build_record(Completion, completion(ended))
    assert ended.finished.verdict is Verdict.OK
    assert (record.content, record.reasoning_content) == ("two", "hm")
    assert [m["content"] for m in record.messages] == ["a", "one", "b"]
    assert [(bytes(a), bytes(b)) for a, b in record.examples] == [
        (b"user:a", b"one"),
        (b"user:a|assistant:one|user:b", b"<think>\nhm\n</think>\n\ntwo"),
    ]
    assert record.finish_reason == "stop"
    assert record.usage.reasoning_tokens == len("<think>\nhm\n</think>")
    assert record.usage.completion_tokens == len(record.output_ids)
    assert (record.seed, record.sampling) == (0, Sampling())


@pytest.mark.parametrize("nothing", [" ", "\u200b", "\ufeff\n"])
async def test_an_empty_answer_is_not_kept_unnoticed(nothing) -> None:
    ended = await own("a", assistant(nothing))
    assert ended.failure.verdict is Verdict.EMPTY
    assert ended.failure.final  # the row says the same again
    flagged = await own("a", assistant(" "), policies={"empty": "keep"})
    assert completion(flagged)["verdict"] == "empty"


async def test_a_row_without_an_answer_has_nothing_to_keep() -> None:
    assert (await own("a")).failure.verdict is Verdict.BAD_ROW
