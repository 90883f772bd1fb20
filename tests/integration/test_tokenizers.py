"""The tokenizer by which a consumer renders: the one that its runs are compared with, or none."""

from __future__ import annotations

import pytest

from common.errors import EngineError
from consumer import start
from consumer.engine import hf_renderer
from consumer.engine.states import EngineState as S
from consumer.engine.supervisor import StartBudget, Supervisor
from tests.support.fake_engine import FakeSglang, fake_spec
from tests.support.tiny_tokenizer import TEMPLATE

BUDGET = StartBudget(backoff_base_seconds=0.05, kill_seconds=0.3, poll_seconds=0.05)
HELLO = [{"role": "user", "content": "Hello."}]


async def test_a_template_that_is_mended_in_place_is_taken_up_by_the_next_engine(tmp_path):
    spec = fake_spec(tmp_path)
    supervisor = Supervisor(FakeSglang(), spec, budget=BUDGET)
    await supervisor.start()
    try:
        before = (await supervisor.wait_ready()).model_fingerprint
        renderer = supervisor.engine.renderer(spec, supervisor.http)
        first = await renderer.render(HELLO, thinking=None)
        folder = tmp_path / "tiny-model"
        template = TEMPLATE.replace("message.role ~", "'mended ' ~ message.role ~")
        (folder / "chat_template.jinja").write_text(template)
        supervisor.condemn("a test")
        await supervisor.wait_for(S.STARTING)
        assert (await supervisor.wait_ready()).model_fingerprint != before
        renderer = supervisor.engine.renderer(spec, supervisor.http)
        assert b"mended user" in bytes(
            i for i in await renderer.render(HELLO, thinking=None) if i < 256
        )
        assert await renderer.render(HELLO, thinking=None) != first
    finally:
        await supervisor.stop(now=True)


async def test_a_tokenizer_that_cannot_be_loaded_ends_the_consumer_and_says_why(world, monkeypatch):
    """Without the check of honesty nothing else asks for it before the first item."""

    def fails(*_args, **_options):
        raise EngineError("The tokenizer of m cannot be loaded.", fix="pip install transformers")

    monkeypatch.setattr(start, "engine_named", lambda _name: FakeSglang())
    monkeypatch.setattr(hf_renderer, "load_tokens", fails)
    await world.load(3)
    with pytest.raises(EngineError, match="cannot be loaded") as refusal:
        await world.burst()
    assert refusal.value.fix == "pip install transformers"
