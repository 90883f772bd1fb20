"""The loaders that the exports are made for read them, and find in them what was generated."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from common.records import Turn, Usage
from producer.cli import cli
from tests.support import foreign
from tests.support.committed import store_committed
from tests.support.completions import completion
from tests.support.tiny_tokenizer import EOS_ID, build_model_folder

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "GENQ_TEST_FOREIGN_PYTHON"
COMMANDS = (
    "python3.11 -m venv F; F/bin/pip install speculators==0.9.0;"
    " F/bin/pip install --no-deps specforge==0.2.0; "
)
pytestmark = pytest.mark.slow
START, NEWLINE = 257, 10


def ids(text):
    return list(text.encode())


def ask(*said):
    """The prompt's ids: a chat in the tiny model's template, its answers without their thoughts."""
    out = []
    for n, text in enumerate(said):
        role = "assistant" if n % 2 else "user"
        out += [START, *ids(role), NEWLINE, *ids(text), EOS_ID, NEWLINE]
    return [*out, START, *ids("assistant"), NEWLINE]


def plain(k):
    text = f"answer {k} \u00e9\u2028"
    given = {"messages": [{"role": "user", "content": "Q"}], "content": text}
    return completion(k, input_ids=ask("Q"), output_ids=[*ids(text), EOS_ID], **given)


def talk(k):
    """Two turns without thoughts: the second prompt goes on where the first answer ended."""
    first = Turn("A1", None, ask("Q1"), [*ids("A1"), EOS_ID], "stop", "ok", Usage(1, 2), 7)
    return completion(
        k,
        messages=[
            {"role": "user", "content": "Q1"},
            {"role": "assistant", "content": "A1"},
            {"role": "user", "content": "Q2"},
        ],
        content="A2",
        turns=[first],
        input_ids=ask("Q1", "A1", "Q2"),
        output_ids=[*ids("A2"), EOS_ID],
    )


@pytest.fixture
def exports(store, store_settings, tmp_path, monkeypatch):
    """All formats of one run, and what their own loaders say of them."""
    if not os.environ.get(VARIABLE):
        pytest.skip(
            f"{VARIABLE} names no Python with the loaders: {COMMANDS}{VARIABLE}=F/bin/python"
        )
    for name, value in store_settings.items():
        monkeypatch.setenv(f"GENQ_{name.upper()}", str(value))
    store_committed(store, "r", [[plain(0), plain(1)], [talk(2)]])
    for form in ("specforge", "speculators", "messages", "openai-batch"):
        run("r", "--to", form, str(tmp_path / f"{form}.jsonl"))
    run("r", "--to", "specforge", "--per-turn", str(tmp_path / "turns.jsonl"))
    build_model_folder(tmp_path / "model")
    done = subprocess.run(
        [os.environ[VARIABLE], foreign.__file__, tmp_path],
        env=os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return tmp_path, json.loads(done.stdout)


def run(*words):
    done = CliRunner().invoke(cli, ["export", *words])
    assert done.exit_code == 0, done.output


def learned(row):
    """The text of each stretch that is learned."""
    stretches, last = [], 0
    for token, mask in zip(*row, strict=True):
        if mask and not last:
            stretches.append([])
        if mask:
            stretches[-1].append(token)
        last = mask
    return [bytes(one for one in stretch if one < 256).decode() for stretch in stretches]


def rows_of(path: Path):
    return [[row["input_ids"], row["loss_mask"]] for row in foreign.lines(path)]


@pytest.mark.timeout(700)
def test_the_foreign_loaders_find_what_was_generated(exports):
    folder, found = exports
    written = rows_of(folder / "speculators.jsonl")
    assert len(written) == 3
    assert sorted(found["speculators"]) == sorted(written)
    assert found["specforge ids"] == written
    answers = [["answer 0 \u00e9\u2028"], ["answer 1 \u00e9\u2028"], ["A1", "A2"]]
    assert [learned(row) for row in written] == answers
    # SpecForge renders by itself, and learns the line's end that its template puts after a turn.
    rendered = [[f"{text}\n" for text in row] for row in answers]
    assert sorted(learned(row) for row in found["specforge"]) == sorted(rendered)
    turns = [*rendered[:2], ["A1\n"], ["A2\n"]]
    assert sorted(learned(row) for row in found["specforge turns"]) == sorted(turns)
    assert found["openai"] == [
        ["row 0", answers[0][0]],
        ["row 1", answers[1][0]],
        ["row 2", "A2"],
    ]
