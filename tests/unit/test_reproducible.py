"""Equal tokens for equal seeds: asked of the engine, said by the load, told by the card."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from common.errors import UsageError
from consumer.engine.api import EngineSpec
from consumer.engine.launch import DETERMINISTIC_FLAG, llamacpp_launch, sglang_launch
from consumer.sink.card import readme
from consumer.sink.summary import Summary
from producer.load import command as load_command
from producer.load.loader import Loaded
from tests.support.producers import load_options

SPEC = EngineSpec("m", None, None, 1234, "k", Path("state"))
SURE = dataclasses.replace(SPEC, reproducible=True)
SUMMARY = Summary("r", "parquet", 1, 1, 1, 1, 0, {}, {}, [], [], 1, 1)


def test_sglang_is_launched_with_its_flag_once_and_only_when_asked():
    assert DETERMINISTIC_FLAG not in sglang_launch(SPEC, "m", ()).argv
    for flags in ((), (DETERMINISTIC_FLAG,)):
        assert sglang_launch(SURE, "m", flags).argv.count(DETERMINISTIC_FLAG) == 1


def test_llama_computes_one_request_at_a_time():
    argv = llamacpp_launch(SURE, "m.gguf", threads=1).argv
    assert argv[argv.index("--slots") + 1] == "1"
    with pytest.raises(UsageError, match="--max-running 4"):
        llamacpp_launch(dataclasses.replace(SURE, max_running=4), "m.gguf", threads=1)


def test_the_card_promises_only_what_the_engines_did():
    assert "equal tokens are not promised" in readme(SUMMARY, "s3://b/r")
    sure = readme(dataclasses.replace(SUMMARY, reproducible=True), "s3://b/r")
    assert "not promised" not in sure
    assert "promised equal tokens" in sure


class Heard:
    """A console that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def result(self, words: str, data: object) -> None:
        """Not looked at here."""


@pytest.mark.parametrize("flags", [[], ["--reproducible"]])
def test_a_load_says_what_it_costs(monkeypatch, settings_of_nothing, flags):
    done = Loaded("r", "loaded", 1, 1)
    monkeypatch.setattr(load_command, "load", lambda *_: done)
    options = load_options("x.jsonl", *flags)
    heard = Heard()
    load_command.run_load(options.pop("datasets"), options, settings_of_nothing, heard)
    assert any("half of the tokens per second" in text for text in heard.said) is bool(flags)


@pytest.fixture
def settings_of_nothing():
    from common.settings import load_settings  # noqa: PLC0415 - pydantic is slow to import

    return load_settings()
