"""The real small engine with the real small model."""

from __future__ import annotations

import asyncio
import random

import psutil
import pytest

from common.errors import EngineError
from common.model import locate_model
from common.records import Sampling
from common.tokens import load_tokens
from consumer.engine import engine_named
from consumer.engine.api import EngineSpec, GenerateRequest
from consumer.engine.honesty import Honesty
from consumer.engine.http import EngineHttp
from consumer.engine.states import EngineState as S
from consumer.engine.supervisor import StartBudget, Supervisor
from tests.support.fake_engine import free_port

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def make(folder, **fields) -> Supervisor:
    values = {"model": "smollm2", "gpu": None, "url": None, "port": free_port(), "max_running": 2}
    spec = EngineSpec(**{**values, "context": 512, "api_key": "k3y", "state_dir": folder, **fields})
    budget = StartBudget(backoff_base_seconds=0.05, poll_seconds=0.1, attempts=2)
    return Supervisor(engine_named("llamacpp"), spec, budget=budget, stall_seconds=60)


@pytest.fixture
async def supervisor(tmp_path):
    supervisor = make(tmp_path)
    await supervisor.start()
    await supervisor.wait_ready()
    yield supervisor
    await supervisor.stop(now=True)


async def generate(supervisor, ids, **fields):
    sampling = {"max_tokens": 12, "temperature": 0.0} | fields.pop("sampling", {})
    values = {"seed": 1} | fields
    request = GenerateRequest("a" * 32, ids, Sampling(**sampling), **values)
    path, body = supervisor.engine.generate(request)
    reply = await supervisor.http.post(path, body, 120)
    assert reply.ok, reply
    return supervisor.engine.read(reply.body)


async def test_it_is_on_loopback_and_answers_nobody_without_its_key(supervisor):
    listening = [
        connection.laddr.ip
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == supervisor.spec.port
    ]
    assert set(listening) == {"127.0.0.1"}
    for key in ("", "guess"):
        stranger = EngineHttp(supervisor.spec.base_url, key)
        try:
            for path in ("/props", "/slots", "/metrics", "/completion"):
                reply = await stranger.post(path, {}, 30)
                assert reply.status == 401, (path, reply)
        finally:
            await stranger.close()


async def test_facts_and_the_way_from_messages_to_text(supervisor):
    facts = supervisor.facts
    assert (facts.engine, facts.vocab_size, facts.context_tokens) == ("llamacpp", 49152, 512)
    assert (facts.max_running, facts.kv_tokens, facts.model) == (2, None, "smollm2")
    renderer = supervisor.engine.renderer(supervisor.spec, supervisor.http)
    ids = await renderer.render(QUESTION, thinking=None)
    text = await renderer.decode(ids)
    assert "What is the capital of France?" in text
    assert "<|im_" not in text
    assert ids.count(ids[0]) == 3  # one opening mark a turn: none doubled in front

    answer = await generate(supervisor, ids, logprobs=True)
    assert answer.prompt_tokens == len(ids)
    assert len(answer.output_ids) == answer.completion_tokens == len(answer.logprobs) == 12
    assert (await renderer.decode(answer.output_ids)).strip() == answer.text.strip()


async def test_a_row_that_the_template_refuses_is_a_value_error(supervisor):
    renderer = supervisor.engine.renderer(supervisor.spec, supervisor.http)
    with pytest.raises(ValueError, match="apply-template"):
        await renderer.render([{"role": "user", "content": 5}], thinking=None)
    with pytest.raises(ValueError, match="cannot be asked"):
        await renderer.render([{"role": "user", "content": "\ud800"}], thinking=None)


async def test_the_same_seed_gives_the_same_answer_and_another_another(supervisor):
    ids = [1, 4093, 198, 19556, 2, 198, 1, 520, 9531, 198]
    warm = {"temperature": 1.0}
    first, same, other = [
        (await generate(supervisor, ids, sampling=warm, seed=seed)).output_ids for seed in (1, 1, 2)
    ]
    assert first == same != other


async def test_progress_shows_while_a_request_runs(supervisor):
    ids = [1, 4093, 198, 19556, 2, 198, 1, 520, 9531, 198]
    path, body = supervisor.engine.generate(
        GenerateRequest("a" * 32, ids, Sampling(max_tokens=200), seed=1)
    )
    request = asyncio.create_task(supervisor.http.post(path, body | {"ignore_eos": True}, 120))
    seen = []
    while len(set(seen)) < 4:
        assert not request.done(), f"no progress was visible: {seen}"
        load = await supervisor.engine.load(supervisor.http)
        if load.running:
            seen.append((load.work, load.generated_tokens))
    assert seen == sorted(seen)
    request.cancel()
    async with asyncio.timeout(30):  # a closed connection frees the slot
        while (await supervisor.engine.load(supervisor.http)).running:
            pass


async def test_the_real_engine_is_honest(supervisor):
    honesty = Honesty()
    await honesty(supervisor.engine, supervisor.http, supervisor.spec, supervisor.facts)
    assert [probe.text for probe in honesty.record][1].startswith("Monday, Tuesday")


async def test_killed_it_comes_back_and_answers(supervisor):
    child = psutil.Process(supervisor._life._spawn.result().pid).children()[0]
    child.kill()
    await supervisor.wait_for(S.BACKOFF, S.STARTING)
    await supervisor.wait_ready()
    assert supervisor.incarnation == 2
    assert (await generate(supervisor, [1, 4093])).output_ids


async def test_without_the_key_it_does_not_answer(supervisor):
    stranger = EngineHttp(supervisor.spec.base_url)
    assert (await stranger.post("/completion", {"prompt": [1], "n_predict": 1}, 10)).status == 401
    await stranger.close()


async def test_a_file_that_is_no_model_is_fatal_and_named(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and then nothing of use")
    supervisor = make(tmp_path, model=str(broken))
    await supervisor.start()
    with pytest.raises(EngineError) as refusal:
        await supervisor.wait_ready()
    assert supervisor.incarnation == 1
    assert "--model" in refusal.value.fix
    await supervisor.stop()


TEXTS = (
    "It's 1234.5, isn't it? I'LL don't they've",
    "  leading and   inner\t\ttabs \n\n\n lines \r\n end  ",
    "été naïve Ünïcode ½ Ⅷ ٣٤ 漢字かな交じり文 한국어 😀👩\u200d👩\u200d👧 \u00a0nbsp",
    "<|im_start|>user\nnot a turn<|im_end|> <|im_end <|endoftext|>",
    "def f(x):\n    return x**2  # comment\n\n\tif x<=3: pass",
    "a" * 300 + "1" * 50 + "!" * 50,
    "\u0000\u0007\ufeff\u2028 control",
)


async def test_a_prompt_is_counted_without_the_engine_as_the_engine_reads_it(supervisor):
    tokens = load_tokens(str(locate_model("smollm2")))
    renderer = supervisor.engine.renderer(supervisor.spec, supervisor.http)
    drawn = random.Random(7)
    signs = "abcXYZ 019  \n\t.,;'\"-_éßΩжあ漢🙂½\u0301"
    texts = [*TEXTS, *("".join(drawn.choices(signs, k=40)) for _ in range(60))]
    for text in texts:
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": text}]
        theirs = await renderer.render(messages, thinking=None)
        assert tokens.render(messages, thinking=None) == theirs, text
        assert tokens.counts([messages], thinking=None) == [len(theirs)]
