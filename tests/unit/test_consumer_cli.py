"""gen-consumer's commands: serving without a name, and what explain and profiles print."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from common.errors import UsageError
from consumer.cli import command
from consumer.engine import sglang, sglang_server
from consumer.engine.api import EngineSpec
from consumer.tuning.profiles import SHIPPED, read_profile
from tests.support.boots import BOOT


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GENQ_STATE_DIR", str(tmp_path / "state"))
    folder = tmp_path / "Qwen3.6-27B"
    folder.mkdir()
    (folder / "config.json").write_bytes((BOOT / "config_27b.json").read_bytes())
    return str(folder)


def run(*words: str) -> str:
    result = CliRunner().invoke(command, list(words), catch_exceptions=False, standalone_mode=False)
    assert result.return_value in (0, None)
    return result.stdout


def test_without_a_command_it_serves():
    text = run("--help")
    assert " [OPTIONS] [-- ENGINE FLAGS]\n" in text
    assert text.count("\n") < 45
    for name in ("explain", "profiles", "tune", "check"):
        assert f"\n    {name} " in text
    with pytest.raises(UsageError, match="No model"):
        command.main(["--gpu", "0", "--", "--made-up"], standalone_mode=False)


def test_a_misspelled_command_is_no_flag_of_the_engine():
    with pytest.raises(UsageError, match="did you mean explain"):
        command.main(["explan", "--model", "m"], standalone_mode=False)
    with pytest.raises(UsageError, match="no command foo"):
        command.main(["--model", "m", "foo"], standalone_mode=False)


@pytest.mark.parametrize(
    "words", [("explain",), ("profiles",), ("profiles", "show"), ("tune",), ("check",)]
)
def test_each_help_fits_a_screen(words):
    assert run(*words, "--help").count("\n") < 45


def test_explain_shows_shares_cap_waste_and_the_flags_that_lift_it(model):
    text = run("explain", "--model", model, "--card", "H200", "--", "--language-model-only")
    assert max(len(line) for line in text.splitlines() if "--" not in line) <= 100
    for part in ("weights", "states", "kv cache", "left free"):
        assert f"\n{part} " in text
    assert "Running at once: 49, capped by 245 state slots, 5 for each request." in text
    assert "Wasted: " in text
    assert "--disable-radix-cache --max-running-requests " in text
    assert "! changes what the model answers" in text
    assert "Roofline: " in text


def test_explain_as_data_says_the_same(model):
    flags = ("--language-model-only", "--disable-radix-cache", "--max-running-requests=256")
    size = ("--gpu-memory", "141GB", "--prompt-tokens", "256", "--output-tokens", "256")
    data = json.loads(run("explain", "--model", model, *size, "--json", "--", *flags, "--odd"))
    assert data["card"] == "H200"
    assert data["budget"]["running"] == data["budget"]["asked"] == 256
    assert data["budget"]["cap"] == "asked"
    assert data["not_understood"] == ["--odd"]
    assert sum(part["bytes"] for part in data["budget"]["parts"]) <= data["memory_bytes"]
    assert data["lifts"][0]["running"] > 256
    assert data["lifts"][0]["roofline_tokens_per_second"] > 6000


def test_explain_of_a_profile_takes_its_card_and_flags(model):
    data = json.loads(
        run("explain", "--model", model, "--profile", "b200-qwen3.6-27b-mtp", "--json")
    )
    assert (data["card"], data["budget"]["running"]) == ("B200", 40)


def test_a_start_that_would_fail_says_so(model):
    flags = ("--speculative-algorithm=NEXTN", "--disable-radix-cache", "--max-running-requests=96")
    text = run("explain", "--model", model, "--card", "H200", "--", *flags)
    assert "It does not start: " in text
    assert "What would start:" in text


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((), "No model"),
        (("--model", "/nowhere", "--card", "H200"), r"no config\.json"),
        (("--model", "MODEL", "--card", "Voodoo"), "not known"),
        (("--model", "MODEL", "--card", "H200", "--profile", "x"), "no profile"),
        (("--model", "MODEL", "--card", "H200", "--", "--page-size", "x"), "--page-size"),
    ],
)
def test_what_cannot_be_explained_is_named(model, words, what):
    given = [model if word == "MODEL" else word for word in words]
    with pytest.raises(UsageError, match=what) as refusal:
        command.main(["explain", *given], standalone_mode=False)
    assert refusal.value.fix


def test_an_unknown_card_of_known_size_is_explained_without_speed(model):
    data = json.loads(
        run("explain", "--model", model, "--card", "Voodoo", "--gpu-memory", "100GB", "--json")
    )
    assert (data["card"], data["roofline"]) == (None, None)
    assert data["memory_bytes"] == 100 << 30


def test_profiles_are_listed_and_shown(model, tmp_path):
    lines = run("profiles").splitlines()
    assert run("profiles", "list").splitlines() == lines
    assert any(
        "h200-qwen3.6-27b-bf16-state" in line and "changes outputs" in line for line in lines
    )
    data = json.loads(run("profiles", "list", "--json"))
    assert {one["name"] for one in data["profiles"]} == {p.stem for p in SHIPPED.glob("*.toml")}
    shown = tmp_path / "shown.toml"
    shown.write_text(run("profiles", "show", "h200-qwen3.6-27b"))
    real = read_profile(SHIPPED / "h200-qwen3.6-27b.toml")
    assert read_profile(shown).flags == real.flags
    assert read_profile(shown).origin == real.origin
    one = json.loads(run("profiles", "show", "h200-qwen3.6-27b", "--json"))
    assert one["gain"] == pytest.approx(2.508, abs=0.001)


def test_the_start_is_printed_with_the_profile_that_was_named(model):
    words = ("--gpu", "3", "--model", model, "--profile", "h200-qwen3.6-27b", "--print-command")
    text = run(*words, "--", "--random-seed", "7")
    assert text.startswith("#!/bin/sh\n# SGLang")
    assert "--max-running-requests 266" in text
    assert "--random-seed 7" in text
    assert "Profile" not in run("--model", model, "--profile", "none", "--print-command")
    for other in (("--engine", "llamacpp"), ("--url", "http://127.0.0.1:1", "--profile", "x")):
        with pytest.raises(UsageError, match="no start by hand"):
            command.main([*other, "--model", "m", "--print-command"], standalone_mode=False)


def test_text_only_is_a_flag_or_for_older_releases_our_own_doing(tmp_path, monkeypatch):
    monkeypatch.setattr(sglang.importlib.util, "find_spec", lambda _name: True)
    asked = EngineSpec(
        model="m",
        gpu=None,
        url=None,
        port=31000,
        api_key="k",
        state_dir=tmp_path,
        flags=("--language-model-only",),
    )
    for version, by_flag in (("0.5.17", False), ("0.5.23", True), ("", True)):
        monkeypatch.setattr(sglang, "installed_version", lambda version=version: version)
        launch = sglang.SglangEngine().launch(asked)
        assert ("--language-model-only" in launch.argv) is by_flag
        assert (sglang_server.TEXT_ONLY_VARIABLE in launch.env) is not by_flag


def test_the_wrapper_turns_the_vision_side_off_and_hides_the_key(tmp_path):
    package = tmp_path / "sglang" / "srt"
    package.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "server_args.py").write_text(
        "class ServerArgs:\n"
        "    @classmethod\n"
        "    def from_cli_args(cls, args):\n"
        "        return args\n"
    )
    (tmp_path / "sglang" / "launch_server.py").write_text(
        "import argparse, os, sys\n"
        "from sglang.srt.server_args import ServerArgs\n"
        "args = ServerArgs.from_cli_args(argparse.Namespace(enable_multimodal=None))\n"
        "ours = sorted(name for name in os.environ if 'GENQ' in name)\n"
        "print(args.enable_multimodal, sys.argv[-2:], ours)\n"
    )
    bare = {name: value for name, value in os.environ.items() if not name.startswith("GENQ_")}
    secret = {sglang_server.KEY_VARIABLE: "k", "PYTHONPATH": str(tmp_path)}

    def said(**extra: str) -> str:
        command_line = [sys.executable, "-P", sglang_server.__file__]
        return subprocess.run(
            command_line, env=bare | secret | extra, capture_output=True, text=True, check=True
        ).stdout

    assert said() == "None ['--api-key', 'k'] []\n"
    assert said(**{sglang_server.TEXT_ONLY_VARIABLE: "1"}) == "False ['--api-key', 'k'] []\n"
