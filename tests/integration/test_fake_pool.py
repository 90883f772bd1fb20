"""The stand-in's token pool and its queue limit: off by default, as the real server's when on."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from consumer.engine.http import EngineHttp
from consumer.engine.sglang import read_load
from tests.support.captured import captured
from tests.support.fake_engine import FakeSglang, fake_state, running_fake, set_faults
from tests.support.servers import eventually

ENGINE = FakeSglang()
TOKENS = 60  # of each answer
SLOW = ("--token-seconds", "0.01", "--answer-tokens", "100000")


@pytest.fixture
async def fake(tmp_path):
    async with running_fake(tmp_path, *SLOW, max_running=8) as spec:
        http = EngineHttp(spec.base_url, spec.api_key)
        yield spec, http
        await http.close()


def ask(http, n, tokens=TOKENS):
    body = {"rid": f"{n:032x}", "input_ids": [65, n], "sampling_params": {"max_new_tokens": tokens}}
    return asyncio.create_task(http.post("/generate", body, 60))


async def load_of(http):
    loads, metrics = await http.get("/v1/loads", 5), await http.get("/metrics", 5)
    return read_load(loads.required(), metrics.required().decode())


async def all_running(spec, n):
    async def enough():
        return len((await fake_state(spec))["running"]) == n

    await eventually(enough)


async def test_without_a_pool_nothing_is_ever_put_back(fake):
    spec, http = fake
    answers = [ENGINE.read((await reply).required()) for reply in [ask(http, n) for n in range(8)]]
    assert [answer.completion_tokens for answer in answers] == [TOKENS] * 8
    state = await fake_state(spec)
    assert (state["retracted"], state["refused"]) == (0, 0)
    assert "retracted" not in (await http.get("/metrics", 5)).required().decode()


async def test_tokens_that_outgrow_the_pool_are_put_back_counted_and_finished_later(fake):
    spec, http = fake
    replies = [ask(http, n, 200) for n in range(8)]
    await all_running(spec, 8)
    await set_faults(spec, token_pool=700)  # eight of 202 do not fit

    async def put_back():
        load = await load_of(http)
        return load if load.retractions and load.running < 8 else None

    load = await eventually(put_back)
    assert load.waiting > 0
    assert load.token_usage <= 1.0
    info = orjson.loads((await http.get("/server_info", 5)).required())
    assert info["max_total_num_tokens"] == 700
    bodies = [orjson.loads((await reply).required()) for reply in replies]
    assert [body["meta_info"]["completion_tokens"] for body in bodies] == [200] * 8
    told = sum(body["meta_info"]["num_retractions"] for body in bodies)
    assert told == (await load_of(http)).retractions == (await fake_state(spec))["retracted"]


async def test_a_pool_lets_in_only_as_many_as_will_fit(fake):
    spec, http = fake
    await set_faults(spec, token_pool=200)
    replies = [ask(http, n) for n in range(8)]
    await all_running(spec, 3)
    assert len((await fake_state(spec))["waiting"]) == 5
    assert all([(await reply).ok for reply in replies])


async def test_the_last_one_that_finds_no_room_is_given_up(fake):
    spec, http = fake
    await set_faults(spec, token_pool=30)
    reply = await ask(http, 1)
    assert reply.status == 500
    assert b"Out of memory even after retracting" in reply.body


@pytest.mark.parametrize("status", [503, 429])
async def test_beyond_the_queue_limit_requests_are_pushed_back(fake, status):
    spec, http = fake
    await set_faults(spec, hang=True, queue_limit=4, queue_status=status)
    replies = [ask(http, n) for n in range(4)]

    async def waiting():
        return len((await fake_state(spec))["waiting"]) == 4

    await eventually(waiting)
    reply = await ask(http, 7)
    assert reply.status == status
    assert orjson.loads(reply.body) == captured("queue_full") | {
        "code": status,
        "type": str(status),
    }
    await set_faults(spec, hang=False, queue_limit=0)
    assert all([(await reply).ok for reply in replies])
    assert (await fake_state(spec))["refused"] == 1
