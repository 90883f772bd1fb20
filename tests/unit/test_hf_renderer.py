"""The tokenizer's words: the model's, as they were said, and none of a library's on stderr."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.tiny_tokenizer import build_model_folder

DECODE = """
import asyncio, sys
from common.telemetry.logs import setup_logging
from consumer.engine.hf_renderer import HfRenderer
setup_logging(form="json")
print(asyncio.run(HfRenderer(sys.argv[1]).decode(list(b"It 's so , he said ."))))
"""


def test_text_is_not_cleaned_up_and_nothing_is_said_about_it(tmp_path):
    folder = build_model_folder(tmp_path / "model")
    path = folder / "tokenizer_config.json"
    asked = json.loads(path.read_text()) | {"clean_up_tokenization_spaces": True}
    path.write_text(json.dumps(asked))
    done = subprocess.run(
        [sys.executable, "-c", DECODE, str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout == "It 's so , he said .\n"
    assert done.stderr == ""
