"""The stand-in speaks the captured protocol: same keys, same codes, same habits."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from common.records import Sampling
from consumer.engine.api import GenerateRequest
from consumer.engine.http import EngineHttp
from tests.support.captured import FIXTURES, captured
from tests.support.fake_engine import FakeSglang, fake_state, running_fake, set_faults

ENGINE = FakeSglang()


@pytest.fixture
async def fake(tmp_path):
    async with running_fake(tmp_path, "--max-queued-requests", "4", max_running=2) as spec:
        http = EngineHttp(spec.base_url, spec.api_key)
        yield spec, http
        await http.close()


async def generate(http, n=1, ids=(65, 66), **fields):
    body = {"rid": f"{n:032x}", "input_ids": list(ids), "sampling_params": {"max_new_tokens": 20}}
    return await http.post("/generate", body | fields, 30)


def keys(value, at=""):
    if isinstance(value, list):
        return keys(value[0], at + "[]") if value else set()
    if not isinstance(value, dict):
        return set()
    found = {f"{at}.{key}" for key in value}
    return found.union(*(keys(inner, f"{at}.{key}") for key, inner in value.items()))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/server_info", "server_info"),
        ("/model_info", "model_info"),
        ("/v1/models", "models"),
        ("/v1/loads", "loads"),
    ],
)
async def test_every_key_of_the_captured_answer_is_there(fake, path, name):
    _, http = fake
    answer = orjson.loads((await http.get(path, 5)).required())
    assert keys(answer) >= keys(captured(name))


async def test_a_generation_has_every_key_of_the_captured_one(fake):
    reply = await generate(fake[1], sampling_params={"max_new_tokens": 5})
    answer = orjson.loads(reply.required())
    details = {f".meta_info.cached_tokens_details.{kind}" for kind in ("device", "host")}
    assert keys(answer) >= keys(captured("generate_rid")) - details


async def test_its_counters_have_the_captured_names(fake):
    _, http = fake
    await generate(http)
    text = (await http.get("/metrics", 5)).required().decode()
    real = (FIXTURES / "metrics.txt").read_text()
    for line in text.splitlines():
        assert line.partition("{")[0] + "{" in real


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"input_ids": []}, "bad_empty_ids"),
        ({"input_ids": None}, "bad_no_input"),
        ({"sampling_params": {"temperature": -1}}, "bad_temperature"),
        ({"sampling_params": {"nonesuch": 1}}, "bad_sampling_field"),
    ],
)
async def test_bad_requests_get_the_captured_answer(fake, change, name):
    real = orjson.loads((FIXTURES / f"{name}.json").read_bytes())["answer"]
    reply = await generate(fake[1], **change)
    assert reply.status == real["status"]
    body = reply.body.decode() if isinstance(real["body"], str) else orjson.loads(reply.body)
    assert body == real["body"]


async def test_too_long_is_refused_and_a_bad_id_kills_it(fake):
    _, http = fake
    reply = await generate(http, ids=[65] * 5000)
    assert reply.status == 400
    assert b"longer than the model's context length (4096 tokens)" in reply.body
    assert (await generate(http, ids=[400])).status is None
    assert not (await http.get("/health", 5)).ok


async def test_an_abort_ends_all_whose_id_begins_so(fake):
    spec, http = fake
    await set_faults(spec, hang=True)
    asks = [asyncio.create_task(generate(http, n)) for n in (0x10, 0x11, 0x20)]
    await until(spec, lambda state: len(state["running"] + state["waiting"]) == 3)
    await http.post("/abort_request", {"rid": f"{0x10:032x}"[:-1]}, 5)
    answers = [ENGINE.read((await ask).required()) for ask in asks[:2]]
    assert [answer.finish_reason for answer in answers] == ["abort", "abort"]
    await set_faults(spec, hang=False)
    assert ENGINE.read((await asks[2]).required()).finish_reason in ("stop", "length")


async def test_a_queue_that_is_full_is_a_503(fake):
    spec, http = fake
    await set_faults(spec, hang=True)
    asks = [asyncio.create_task(generate(http, n)) for n in range(6)]
    await until(spec, lambda state: len(state["waiting"]) >= 4)
    reply = await generate(http, 7)
    assert (reply.status, orjson.loads(reply.body)) == (503, captured("queue_full"))
    for ask in asks:
        ask.cancel()


async def test_the_same_live_id_is_refused_and_the_first_goes_on(fake):
    spec, http = fake
    await set_faults(spec, hang=True)
    first = asyncio.create_task(generate(http, 1))
    await until(spec, lambda state: state["waiting"])
    assert (await generate(http, 1)).status == 400
    await set_faults(spec, hang=False)
    assert (await first).ok


async def test_a_cache_hit_is_told_and_flushing_forgets(fake):
    _, http = fake
    cached = [
        ENGINE.read((await generate(http, n, ids=[7, 8, 9])).required()).cached_tokens
        for n in (1, 2)
    ]
    assert await ENGINE.forget(http)
    cached.append(ENGINE.read((await generate(http, 3, ids=[7, 8, 9])).required()).cached_tokens)
    assert cached == [0, 2, 0]


@pytest.mark.parametrize(
    "kind", ["truncated", "html", "not_json", "empty", "no_meta", "error", "cut_body"]
)
async def test_a_spoilt_answer_is_never_taken_for_a_good_one(fake, kind):
    spec, http = fake
    await set_faults(spec, answer=kind, answer_count=1)
    reply = await generate(http)
    if kind == "cut_body":
        assert (reply.status, reply.sent) == (None, True)
    else:
        with pytest.raises(ValueError):
            ENGINE.read(reply.required())
    assert ENGINE.read((await generate(http)).required()).output_ids


async def test_a_swapped_answer_shows_in_its_id(fake):
    spec, http = fake
    await generate(http, 1)
    await set_faults(spec, answer="swapped", answer_count=1)
    assert ENGINE.read((await generate(http, 2)).required()).rid == f"{1:032x}"


async def test_the_same_seed_and_prompt_give_the_same_answer(fake):
    _, http = fake

    async def ask(n, seed):
        path, body = ENGINE.generate(
            GenerateRequest(f"{n:032x}", [1, 2], Sampling(max_tokens=60), seed)
        )
        return ENGINE.read((await http.post(path, body, 30)).required()).output_ids

    assert await ask(1, 5) == await ask(2, 5) != await ask(3, 6)


async def test_a_crash_takes_all_connections_with_it(fake):
    spec, http = fake
    await set_faults(spec, hang=True, crash_on_request=3)
    replies = await asyncio.gather(*(generate(http, n) for n in range(3)))
    assert [reply.status for reply in replies] == [None] * 3


async def test_decoding_goes_on_after_the_client_left_until_it_is_aborted(fake):
    spec, http = fake
    await set_faults(spec, loop_answers=1)
    ask = asyncio.create_task(
        generate(http, 1, sampling_params={"max_new_tokens": 3000, "ignore_eos": True})
    )
    await until(spec, lambda state: state["decoded"] > 3)
    ask.cancel()
    before = (await fake_state(spec))["decoded"]
    await until(spec, lambda state: state["decoded"] > before + 20)
    await ENGINE.abort(http, f"{1:032x}")
    assert (await fake_state(spec))["running"] == []


async def until(spec, condition):
    async with asyncio.timeout(20):
        while True:
            if condition(await fake_state(spec)):
                return
            await asyncio.sleep(0.01)  # poll: a state that changes every millisecond
