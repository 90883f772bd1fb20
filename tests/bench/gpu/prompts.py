"""Prompts of one length that share no beginning, for us and for SGLang's own benchmark."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Short words that a tokenizer for English takes as one token each.
WORDS = (
    "time year people way day man thing woman life child world school state family student group"
    " country problem hand part place case week company system program question work number night"
    " point home water room mother area money story fact month lot right study book eye job word"
    " business issue side kind head house service friend father power hour game line end member law"
    " car city name team minute idea body back parent face level office door health person art war"
)


def write_prompts(
    folder: Path, rows: int, words: int, seed: int, render: Callable[[str], str]
) -> tuple[Path, Path]:
    """Write the same prompts as rows for `load`, and as a data set for SGLang's benchmark.

    Its own option for templates leaves out the opening token wherever it stands, so its texts are
    rendered here.
    """
    draw = random.Random(seed)
    ours, theirs = folder / f"rows-{rows}-{seed}.jsonl", folder / f"bench-{rows}-{seed}.jsonl"
    with ours.open("wb") as one, theirs.open("wb") as other:
        for number in range(rows):
            text = " ".join(["Write about:", *draw.choices(WORDS.split(), k=words)])
            row = {"id": f"{seed}-{number}", "prompt": text}
            one.write(orjson.dumps(row) + b"\n")
            turns = [{"content": render(text)}, {"content": "an answer of some length, not used"}]
            other.write(orjson.dumps({"conversations": turns}) + b"\n")
    return ours, theirs


def renderer(model: str) -> Callable[[str], str]:
    """Return what makes a prompt's text of a user's words, by the model's own template."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - where nothing is rendered it is not needed

    tokenizer = AutoTokenizer.from_pretrained(model)

    def render(text: str) -> str:
        turn = [{"role": "user", "content": text}]
        return str(tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False))

    return render
