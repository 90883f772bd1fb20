"""One item to one outcome: policies, turns, and who is charged."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import orjson
import pytest

from common.codec import decompress, loads
from common.ids import Epoch, Item, RunName, Token, WorkerName
from common.records import (
    Leased,
    Policy,
    Row,
    RunInfo,
    RunManifest,
    RunSettings,
    Sampling,
    Verdict,
)
from consumer.engine.api import Answer, EngineFacts, Reply
from consumer.engine.states import EngineState
from consumer.generation.client import Client
from consumer.generation.render import Prompts
from consumer.generation.runner import Ready, Runner
from consumer.leases.catalogue import ActiveRun
from consumer.leases.fetcher import Work
from consumer.leases.keeper import Held
from tests.support.servers import eventually

FACTS = EngineFacts("sglang", "0.0", "m", "", 300, 200, 8, None)
RUN = RunName("r")


class Dialect:
    """An engine's dialect over replies that a test has scripted, in memory."""

    name = "sglang"

    def __init__(self, *replies) -> None:
        self.replies = list(replies)
        self.bodies: list[dict] = []
        self.aborted: list[str] = []

    def generate(self, request):
        return "/generate", {"rid": request.rid, "ids": list(request.input_ids)}

    def read(self, body):
        return Answer(**orjson.loads(body))

    async def abort(self, _http, rid):
        self.aborted.append(rid)

    async def get(self, _path, _seconds):
        return Reply(404, b"")

    async def post(self, _path, body, _seconds):
        self.bodies.append(body)
        reply = self.replies.pop(0)
        if callable(reply):
            return await reply()
        if isinstance(reply, Reply):
            return reply
        text, reason = reply
        answer = {
            "rid": body["rid"],
            "output_ids": list(text.encode()),
            "text": text,
            "finish_reason": reason,
            "prompt_tokens": len(body["ids"]),
            "completion_tokens": len(text),
            "cached_tokens": 0,
            "detail": "",
        }
        return Reply(200, orjson.dumps(answer))


class Bytes:
    """A tokenizer of bytes, whose template refuses one word."""

    async def render(self, messages, *, thinking):
        text = "|".join(f"{m['role']}:{m['content']}" for m in messages)
        if "unspeakable" in text:
            raise ValueError("no such role")
        return list(text.encode())

    async def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def work(*contents: str, deaths: int = 0, attempt: int = 1, **settings) -> Work:
    run_settings = RunSettings(model="m", model_fingerprint="", **settings)
    info = RunInfo(RUN, Epoch("e"), "open", 0, 1, "f", "m", "", 0.0)
    manifest = RunManifest(RUN, run_settings, "f", 1, 1, [], "", "", "")
    leased = Leased(Item(3), Token("t"), attempt, attempt, deaths)
    messages = [{"role": "user", "content": content} for content in contents]
    row = Row(i=3, messages=messages, id="mine", metadata={"a": 1})
    return Work(ActiveRun(info, manifest, None), Held(info, leased, None), row, 0)


def build(*replies):
    dialect = Dialect(*replies)
    serving = SimpleNamespace(state=EngineState.READY, incarnation=1, http=dialect)
    client = Client(dialect, serving)
    return dialect, client, Runner(dialect, client, WorkerName("w"))


async def run(item: Work, *replies):
    _, _, runner = build(*replies)
    return await runner.run(item, Ready(FACTS, Prompts(Bytes())))


def completion(ended) -> dict:
    return loads(decompress(ended.finished.payload, limit_bytes=1 << 20))


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


async def test_turns_are_answered_one_by_one_without_earlier_thoughts() -> None:
    ended = await run(work("a", "b"), ("<think>x</think>one", "stop"), ("two", "stop"))
    record = completion(ended)
    assert [m["content"] for m in record["messages"]] == ["a", "one", "b"]
    assert record["content"] == "two"
    assert ended.finished.completion_tokens == len("<think>x</think>one") + len("two")


@pytest.mark.parametrize(
    ("policy", "finished", "final"),
    [(Policy.KEEP, True, None), (Policy.RETRY, False, False), (Policy.DEAD, False, True)],
)
async def test_the_runs_policy_decides_about_a_row_fault(policy, finished, final) -> None:
    ended = await run(work("hi", policies={"truncated": str(policy)}), ("Par", "length"))
    assert bool(ended.finished) is finished
    if finished:
        assert ended.finished.verdict is Verdict.TRUNCATED
        assert completion(ended)["verdict"] == "truncated"
    else:
        assert ended.failure.charged
        assert ended.failure.final is final
        assert ended.failure.completion_tokens == 3


async def test_a_flagged_earlier_turn_flags_the_completion() -> None:
    ended = await run(work("a", "b"), ("on", "length"), ("two", "stop"))
    assert ended.finished.verdict is Verdict.TRUNCATED


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
