"""Prompts as tokens without an engine: from a model folder, and from a GGUF file's metadata."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from common.errors import EngineError
from common.gguf import read_metadata
from common.model import locate_model
from common.tokens import load_tokens
from tests.support.tiny_tokenizer import build_model_folder

HELLO = [{"role": "user", "content": "Hi"}]
WIZARD = [{"role": "wizard", "content": "Hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_model_folder(tmp_path_factory.mktemp("model") / "m", context=640)


def test_a_folder_counts_what_it_renders_and_knows_its_context(folder):
    tokens = load_tokens(str(folder))
    # <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n, one token a byte
    assert len(tokens.render(HELLO, thinking=None)) == 1 + 5 + 2 + 1 + 1 + 1 + 10
    counts = tokens.counts([HELLO, WIZARD, HELLO], thinking=None)
    assert counts[0] == counts[2] == 21
    assert "unknown role wizard" in str(counts[1])
    assert tokens.counts([HELLO], thinking=False)[0] > 21
    assert tokens.counts([], thinking=None) == []
    assert tokens.context_tokens == 640


def test_the_small_models_file_is_enough():
    tokens = load_tokens(str(locate_model("smollm2")))
    ids = tokens.render([{"role": "user", "content": "It's 2026"}], thinking=None)
    assert tokens.counts([[{"role": "user", "content": "It's 2026"}]], thinking=None) == [len(ids)]
    assert tokens.decode(ids).endswith("user\nIt's 2026\nassistant\n")
    assert ids.count(1) == 3  # system, user, assistant: one opening mark each
    assert tokens.context_tokens == 8192


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(*pairs, version=3):
    body = b"".join(string(name) + struct.pack("<I", kind) + data for name, kind, data in pairs)
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + body


WHOLE = gguf(
    ("general.architecture", 8, string("llama")),
    ("llama.context_length", 4, struct.pack("<I", 512)),
    ("tokenizer.ggml.model", 8, string("llama")),
    ("scores", 9, struct.pack("<IQ2f", 6, 2, 0.5, 1.5)),
    ("words", 9, struct.pack("<IQ", 8, 2) + string("a") + string("b")),
)


def test_metadata_of_every_kind_is_read(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(WHOLE)
    found = read_metadata(path)
    assert found["llama.context_length"] == 512
    assert (found["scores"], found["words"]) == ([0.5, 1.5], ["a", "b"])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (WHOLE, "only llama.cpp can run"),
        (WHOLE[:-3], "cut short"),
        (b"GGUF", "not a GGUF file"),
        (b"text" * 10, "not a GGUF file"),
        (gguf(version=9), "version 9"),
        (gguf(("x", 77, b"")), "unknown type 77"),
        (gguf(("x", 9, struct.pack("<IQ", 8, 2**40))), "larger than any real one"),
        (gguf(("x", 8, struct.pack("<Q", 2**40))), "larger than any real one"),
        (gguf(("x", 9, struct.pack("<IQIQ", 9, 1, 9, 1))), "larger than any real one"),
    ],
)
def test_what_is_no_tokenizer_is_an_error_with_its_reason(tmp_path, data, why):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(EngineError) as caught:
        load_tokens(str(path))
    assert why in caught.value.why


def test_a_model_that_is_nowhere_on_this_machine_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("nobody/nothing", "nothing"):
        with pytest.raises(EngineError, match=f"tokenizer of {name} cannot be loaded"):
            load_tokens(name)


def test_a_tokenizer_is_loaded_without_torch(folder):
    """Where torch is there, it would cost each consumer seconds and 180 MB."""
    code = (
        "import sys; from common.tokens import load_tokens; load_tokens(sys.argv[1]);"
        " sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60)
