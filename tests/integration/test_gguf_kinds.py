"""Each way of splitting text that a GGUF file may name gives llama.cpp's own tokens."""

from __future__ import annotations

import random

import pytest

from common.model import locate_model
from common.tokens import GGUF_SPLITS, load_tokens
from consumer.engine import engine_named
from consumer.engine.api import EngineSpec
from consumer.engine.supervisor import StartBudget, Supervisor
from tests.support.fake_engine import free_port
from tests.support.gguf import with_pre

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(180)]
TEXTS = (
    "It's 1234.5, isn't it? I'LL don't they've",
    "  leading and   inner\t\ttabs \n\n\n lines \r\n end  ",
    "e\u0301te\u0301 n\u00e3\u0301 \u0e01\u0e33 \u0915\u093f",
    "\u00bd \u2167 \u0663\u0664 \u6f22\u5b57",
    "def f(x):\n    return x**2  # comment\n\n\tif x<=3: pass",
    "a" * 300 + "1" * 50 + "!" * 50,
)
SIGNS = (
    "abcXYZ 0123  \n\t\r.,;'\"-_"
    "\u00e9\u00df\u03a9\u0436\u3042\u6f22\u00bd\u0301\u00a0\u3000\U0001f642"
)


@pytest.mark.parametrize("pre", sorted(GGUF_SPLITS))
async def test_a_file_of_this_kind_is_counted_as_the_engine_counts(tmp_path, pre):
    path = with_pre(locate_model("smollm2"), pre, tmp_path / "m.gguf")
    tokens = load_tokens(str(path))
    spec = EngineSpec(
        model=str(path),
        gpu=None,
        url=None,
        port=free_port(),
        max_running=1,
        context=2048,
        api_key="k3y",
        state_dir=tmp_path,
    )
    budget = StartBudget(backoff_base_seconds=0.05, poll_seconds=0.1, attempts=2)
    supervisor = Supervisor(engine_named("llamacpp"), spec, budget=budget, stall_seconds=60)
    drawn = random.Random(7)
    texts = [*TEXTS, *("".join(drawn.choices(SIGNS, k=40)) for _ in range(200))]
    await supervisor.start()
    try:
        await supervisor.wait_ready()
        renderer = supervisor.engine.renderer(supervisor.spec, supervisor.http)
        for text in texts:
            messages = [{"role": "user", "content": text}]
            theirs = await renderer.render(messages, thinking=None)
            assert tokens.render(messages, thinking=None) == theirs, text
    finally:
        await supervisor.stop(now=True)
