"""Reads exported files with the loaders they are made for; runs in an environment that has those.

    python tests/support/foreign.py FOLDER

Their packages need other versions than ours, so nothing of ours is imported here. FOLDER holds the
exports and a model folder; what the loaders made of them goes to stdout as JSON.
"""
# ruff: noqa: PLC0415 - each loader takes seconds to import, and one may be missing

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path


def by_speculators(folder):
    from speculators.data_generation.preprocessing import load_and_preprocess_dataset

    data, _ = load_and_preprocess_dataset(
        str(folder / "model"),
        [str(folder / "speculators.jsonl")],
        seq_length=4096,
        build_dataset_num_proc=1,
    )
    return [[row["input_ids"].tolist(), row["loss_mask"].tolist()] for row in data]


def by_specforge(folder, name):
    from specforge.data.prompt_builder import prepare_prompt_tasks
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tasks = prepare_prompt_tasks(
        folder / name,
        tokenizer,
        chat_template="qwen3-thinking",
        max_length=4096,
        is_preformatted=False,
        train_only_last_turn="turns" in name,
        cache_dir=None,
        cache_key=None,
        num_proc=1,
    )
    rows = [task["payload"] for task in tasks]
    return [[list(map(int, row["input_ids"])), list(map(int, row["loss_mask"]))] for row in rows]


def by_openai(folder):
    from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
    from pydantic import TypeAdapter

    messages = TypeAdapter(list[ChatCompletionMessageParam])
    for row in lines(folder / "messages.jsonl"):
        for _ in messages.validate_python(row["messages"]):
            pass
    answers = []
    for line in lines(folder / "openai-batch.jsonl"):
        body = ChatCompletion.model_validate(line["response"]["body"], strict=True)
        answers.append([line["custom_id"], body.choices[0].message.content])
    return answers


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def main():
    folder = Path(sys.argv[1])
    with redirect_stdout(sys.stderr):
        found = {
            "speculators": by_speculators(folder),
            "specforge": by_specforge(folder, "specforge.jsonl"),
            "specforge turns": by_specforge(folder, "turns.jsonl"),
            "specforge ids": by_specforge(folder, "speculators.jsonl"),
            "openai": by_openai(folder),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
