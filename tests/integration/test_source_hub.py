"""Data sets and tokenizers of the hub, through its real client and over HTTP, in a fresh process.

The client reads HF_ENDPOINT when it is imported, so this is not done in the tests' own process.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import pytest

from tests.support.fake_hub import fake_hub
from tests.support.tiny_tokenizer import build_model_folder

PROGRAM = """
import json, sys
from common.errors import GenqError
from common.tokens import load_tokens
from producer.sources.reader import read_rows
from producer.sources.records import Fault, Limits
from producer.sources.url import sources_of

def read(name, split):
    try:
        found = list(read_rows(sources_of((name,), None, split=split), Limits()))
        return [one.reason if isinstance(one, Fault) else one.value for one in found]
    except GenqError as error:
        return {"code": int(error.exit_code), "what": error.what, "why": error.why}

out = [read(name, split) for name, split in json.loads(sys.argv[1])]
tokens = load_tokens("org/tiny", download=True)
out.append([len(tokens.render([{"role": "user", "content": "Hi"}], thinking=None)),
            tokens.context_tokens])
print(json.dumps(out))
"""
ASKED = [
    ("org/set", "train"),
    ("hf://datasets/org/set?split=train", "test"),
    ("hf://org/set/data/test.jsonl.gz", None),
    ("org/set", "dev"),
    ("org/nothing", None),
]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_what_the_hub_has_is_read_and_what_it_has_not_is_said(tmp_path):
    folder = build_model_folder(tmp_path / "tiny", context=640)
    repositories = {
        "datasets/org/set": {
            "data/train.jsonl": b'{"prompt":"one","id":1,"none":null}\n{"prompt":"two"}\n',
            "data/test.jsonl.gz": gzip.compress(b'{"prompt":"three"}\n'),
            "README.md": b"# Set\n",
        },
        "models/org/tiny": {path.name: path.read_bytes() for path in folder.iterdir()},
    }
    with fake_hub(repositories) as url:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(ASKED)],
            env={**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    train, test, file, split, nothing, model = json.loads(done.stdout.splitlines()[-1])
    assert [row["prompt"] for row in train] == ["one", "two"]
    assert [row["prompt"] for row in test] == ["three"]
    assert [row["prompt"] for row in file] == ["three"]
    for refused, name in ((split, "org/set"), (nothing, "org/nothing")):
        assert refused["code"] == 3
        assert f"hf://{name}" in refused["what"]
        assert refused["why"]
    assert "dev" in split["why"]
    assert model == [21, 640]
