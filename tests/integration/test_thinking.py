"""The thinking switch and thought marks with the real tokenizers: transformers' and llama.cpp's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tokenizers import AddedToken, Tokenizer

from common.model import locate_model
from consumer.engine.api import Answer
from consumer.engine.hf_renderer import HfRenderer
from consumer.engine.http import EngineHttp
from consumer.engine.llama_renderer import LlamaRenderer
from consumer.generation.conversation import Conversation
from consumer.generation.render import Prompts
from consumer.generation.thinking import Parts
from tests.support.tiny_tokenizer import build_model_folder

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{{ m.reasoning_content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking %}START\n"
    "{% elif enable_thinking is defined %}START\n\nEND\n\n{% endif %}{% endif %}"
)
USER = [{"role": "user", "content": "a"}]
SERVER = """
import sys, threading, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.chat_template = sys.argv[1:]
p.hostnames, p.port, p.n_parallel, p.n_ctx = ["127.0.0.1"], 0, 1, 256
p.ui, p.cache_ram_mib = False, 0
server = xllamacpp.Server(p)
print(server.listening_address, flush=True)
threading.Event().wait()
"""


def template(start: str, end: str) -> str:
    return TEMPLATE.replace("START", start).replace("END", end)


def hf_model(folder, start: str, end: str, *, special: bool) -> Prompts:
    """A model folder whose marks are tokens of their own."""
    build_model_folder(folder)
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_tokens([AddedToken(m, special=special, normalized=False) for m in (start, end)])
    tokenizer.save(path)
    config = folder / "tokenizer_config.json"
    said = json.loads(config.read_text()) | {"chat_template": template(start, end)}
    config.write_text(json.dumps(said))
    return Prompts(HfRenderer(str(folder)))


async def assert_taken_apart(prompts: Prompts, start: str, end: str) -> None:
    """Thinking on, thinking off, a kept answer, and a row that carries a thought."""
    on = await prompts.render(USER, thinking=True)
    off = await prompts.render(USER, thinking=False)
    assert off != on
    opened, closed = await prompts.thinking(on), await prompts.thinking(off)
    assert (opened.opened, closed.opened) == (True, False)
    for thinking in (opened, closed):
        for thought in ("hm, so", None):
            ids = await prompts.written(Parts(thought, "Paris."), thinking)
            answer = Answer(None, ids, None, "stop", 1, len(ids), 0, "")
            parts = await prompts.parts(answer, thinking)
            assert (parts.reasoning or None, parts.content) == (thought, "Paris.")
            assert parts.reasoning_tokens < len(ids) - 1
            assert bool(parts.reasoning_tokens) is bool(thought or thinking.opened)
    said = f"{start}secret{end}calls"
    row = [*USER, {"role": "assistant", "content": said, "reasoning_content": "secret"}]
    talk = Conversation([*row, {"role": "tool", "content": "4"}], await prompts.marks())
    assert "secret" not in str(talk.prompt)
    assert talk.prompt[1]["content"] == "calls"


@pytest.mark.parametrize(
    ("start", "end", "special"),
    [("<think>", "</think>", False), ("[THINK]", "[/THINK]", True)],
)
async def test_thoughts_with_transformers(tmp_path, start, end, special) -> None:
    prompts = hf_model(tmp_path, start, end, special=special)
    assert (await prompts.marks()).start == start
    await assert_taken_apart(prompts, start, end)


@pytest.fixture
def llama_server():
    """The real server with the small model and a template that can think; yields its address."""
    words = [sys.executable, "-c", SERVER, str(locate_model("smollm2"))]
    command = [*words, template("<think>", "</think>")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
        process.kill()


@pytest.mark.engine
@pytest.mark.timeout(120)
async def test_thoughts_with_the_llama_server(llama_server) -> None:
    """The small model has no token for the marks: they are text like any other."""
    http = EngineHttp(llama_server)
    try:
        prompts = Prompts(LlamaRenderer(http))
        await assert_taken_apart(prompts, "<think>", "</think>")
        thinking = await prompts.thinking(await prompts.render(USER, thinking=False))
        ids = await prompts.written(Parts(None, "Paris."), thinking)
        assert ids == [*await LlamaRenderer(http).encode("Paris."), 2]  # <|im_end|>
    finally:
        await http.close()
