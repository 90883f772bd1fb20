"""Profiles are found, chosen by what runs here, applied under the user's own flags, and shown."""

from __future__ import annotations

import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from common.errors import UsageError
from common.settings import load_settings
from consumer.engine.api import EngineSpec
from consumer.engine.gpu import GpuFacts
from consumer.start import Options, engine_spec, profiled
from consumer.tuning import choice
from consumer.tuning.cards import card_named
from consumer.tuning.choice import (
    AUTO,
    NONE,
    Choice,
    Surroundings,
    choose_profile,
    with_profile,
    without,
)
from consumer.tuning.commands import profile_json
from consumer.tuning.memory import budget
from consumer.tuning.profiles import (
    SHIPPED,
    Match,
    choose,
    in_range,
    load_profiles,
    profile_dirs,
    profile_named,
    profile_of,
    profile_text,
    read_profile,
)
from consumer.tuning.script import script
from consumer.tuning.serving import serving_of
from tests.support.boots import BOOT, hybrid, smol

ALL = load_profiles([SHIPPED])
HERE = Surroundings(hybrid(), "H200", "0.5.17")


def spec(folder: Path, **fields) -> EngineSpec:
    values = {"model": "m", "gpu": 3, "url": None, "port": 31000, "api_key": "the-secret"}
    return EngineSpec(**{**values, "state_dir": folder, **fields})


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize("profile", ALL, ids=lambda one: one.name)
def test_a_shipped_profile_fits_its_card_and_gives_what_it_says(profile):
    card = card_named(profile.match.card)
    one = budget(hybrid(), card.memory_bytes, serving_of(profile.flags))
    assert one.fits
    assert one.running == profile.origin["running"]
    assert profile.gain > 1.5
    assert profile.path == SHIPPED / f"{profile.name}.toml"
    assert not serving_of(profile.flags).unknown


@pytest.mark.parametrize("profile", ALL, ids=lambda one: one.name)
def test_a_profile_survives_being_written(profile):

    again = profile_of(tomllib.loads(profile_text(profile)), profile.path)
    assert again == profile
    odd = replace(profile, about='a "quote", a \\, a\ttab', window=None, match=Match())
    assert profile_of(tomllib.loads(profile_text(odd)), odd.path) == odd
    sized = replace(profile, match=Match(weights_gigabytes=(20.5, 30.0)))
    assert profile_of(tomllib.loads(profile_text(sized)), sized.path) == sized
    assert profile_json(sized)["match"]["weights_gigabytes"] == [20.5, 30.0]
    assert profile_json(odd)["match"]["weights_gigabytes"] == [0.0, None]


def test_the_profile_of_model_card_and_release_is_taken_and_no_other():
    assert choose(ALL, hybrid(), "H200", "0.5.17").name == "h200-qwen3.6-27b"
    assert choose(ALL, hybrid(), "B200", "0.5.23").name == "b200-qwen3.6-27b-mtp"
    in_fp8 = replace(hybrid(), weight_bytes=round(0.55 * hybrid().weight_bytes))
    for shape, card, version in (
        (hybrid(), "H200", "0.5.13"),
        (hybrid(), "H200", ""),
        (hybrid(), "H100", "0.5.17"),
        (hybrid(), "", "0.5.17"),
        (smol(), "H200", "0.5.17"),
        (None, "H200", "0.5.17"),
        (replace(hybrid(), parameters=4_000_000_000), "H200", "0.5.17"),
        (in_fp8, "H200", "0.5.17"),
        (in_fp8, "B200", "0.5.17"),
    ):
        assert choose(ALL, shape, card, version) is None


def test_one_that_changes_outputs_is_never_taken_by_itself():
    altering = [replace(profile, changes_outputs=True, auto=True) for profile in ALL]
    assert choose(altering, hybrid(), "H200", "0.5.17") is None


def test_a_users_profile_comes_before_a_shipped_one_of_its_name(tmp_path):
    folder = profile_dirs(tmp_path)[0]
    folder.mkdir()
    mine = replace(profile_named(ALL, "h200-qwen3.6-27b"), window=300)
    (folder / "mine.toml").write_text(profile_text(mine))
    assert choose(load_profiles(profile_dirs(tmp_path)), hybrid(), "H200", "0.5.17").window == 300
    assert choose_profile(spec(tmp_path), AUTO, HERE).spec.window == 300


def test_the_users_own_flags_win(tmp_path):
    chosen = choose_profile(spec(tmp_path, flags=("--random-seed", "7")), AUTO, HERE)
    assert chosen.profile.name == chosen.spec.profile == "h200-qwen3.6-27b"
    assert chosen.spec.flags[-2:] == ("--random-seed", "7")
    fewer = choose_profile(spec(tmp_path, max_running=64), AUTO, HERE).spec
    assert "--max-running-requests" not in fewer.flags
    assert fewer.max_running == 64
    assert fewer.window is None, "it was measured with the profile's 266"
    named = spec(tmp_path, flags=("--max-running-requests=64",))
    assert choose_profile(named, "h200-qwen3.6-27b", HERE).spec.window is None
    own = choose_profile(spec(tmp_path, flags=("--mem-fraction-static=0.8",)), AUTO, HERE)
    assert own.profile is None
    assert "--mem-fraction-static=0.8 was given" in own.why


def test_a_consumer_takes_the_profile_of_its_card_by_itself(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_bytes((BOOT / "config_27b.json").read_bytes())
    card = GpuFacts("NVIDIA H200", "uuid", 143_771 << 20, 0)
    monkeypatch.setattr(choice, "gpu_facts", lambda gpu: card if gpu == 3 else None)
    monkeypatch.setattr(choice, "installed_version", lambda: "0.5.17")
    settings = load_settings(model=str(tmp_path), state_dir=tmp_path / "state")
    model = engine_spec(settings, Options(gpu=3, flags=("--random-seed", "7")))
    with capture_logs() as logs:
        taken = profiled(settings, model)
    assert taken.profile == "h200-qwen3.6-27b"
    assert taken.flags == (*profile_named(ALL, taken.profile).flags, "--random-seed", "7")
    (line,) = logs
    assert (line["profile"], line["why"]) == (taken.profile, "it matches model, card and release")
    assert "random-seed" not in line["flags"]  # what a user gives is not for the log
    assert profiled(settings, replace(model, gpu=0)).profile == ""
    off = load_settings(model=str(tmp_path), state_dir=tmp_path / "state", profile="none")
    assert profiled(off, model) == model
    attached = replace(model, url="http://127.0.0.1:1")
    assert profiled(settings, attached) == attached


def test_none_is_taken_where_none_is_wanted_or_matches(tmp_path):
    assert choose_profile(spec(tmp_path), NONE, HERE).spec == spec(tmp_path)
    assert choose_profile(spec(tmp_path), AUTO, replace(HERE, card="")).profile is None


def test_a_named_profile_is_taken_and_what_does_not_match_is_said(tmp_path):
    wanted = "b200-qwen3.6-27b-mtp"
    chosen = choose_profile(spec(tmp_path), wanted, HERE)
    assert chosen.spec.window == 96
    assert "the card is H200" in chosen.why
    with pytest.raises(UsageError, match="did you mean b200-qwen3"):
        choose_profile(spec(tmp_path), "b200-qwen3.6-27b-mpt", HERE)
    path = str(SHIPPED / f"{wanted}.toml")
    assert choose_profile(spec(tmp_path), path, HERE).profile.name == wanted


def test_a_server_that_is_attached_to_takes_the_window_only(tmp_path):
    attached = spec(tmp_path, url="http://127.0.0.1:30000")
    chosen = choose_profile(attached, "b200-qwen3.6-27b-mtp", HERE).spec
    assert (chosen.window, chosen.flags) == (96, ())


def test_a_flag_is_taken_out_with_its_value():
    flags = ("--a", "1", "--b", "--c=2", "--a=3", "--d")
    assert without(flags, "--a") == ("--b", "--c=2", "--d")
    assert without(flags, "--b") == ("--a", "1", "--c=2", "--a=3", "--d")
    profile = profile_named(ALL, "h200-qwen3.6-27b")
    assert "--context-length" not in with_profile(spec(Path(), context=9), profile).flags


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name = 'x'", "'flags' is missing"),
        ("name = 'x'\nflags = 'y'", "not a list"),
        ("name = 'x'\nflags = []\nspeed = 1", "speed is no field"),
        ("name = 'x'\nflags = []\n[match]\nsglang = 'new'", "no bound"),
        ("name = 'x'\nflags = []\n[match]\nplanet = 'earth'", "planet"),
        ("name =", "Invalid value"),
        ("name = 'x'\nflags = []\n[match]\nsglang = 0.5", "match.sglang is not a text: it is 0.5"),
        ("name = 'x'\nflags = []\n[match]\ncard = ['H200']", "match.card is not a text"),
        ("name = 'x'\nflags = []\n[match]\nweights_gigabytes = 5", "is not two numbers: it is 5"),
        ("name = 'x'\nflags = []\nmatch = 'H200'", "match is not a table: it is 'H200'"),
        ("name = 'x'\nflags = []\norigin = 'H200'", "origin is not a table: it is 'H200'"),
        (
            "name = 'x'\nflags = []\norigin = {tokens_per_second_before = '3,500'}",
            "origin.tokens_per_second_before is not a number: it is '3,500'",
        ),
        ("name = 'x'\nflags = []\nauto = 'false'", "auto is neither true nor false"),
        ("name = 'x'\nflags = []\nwindow = inf", "window is not a whole number: it is inf"),
    ],
)
def test_a_file_that_is_no_profile_is_named_with_its_fault(tmp_path, text, why):
    """Also to a consumer that takes a profile by itself, which reads all of them."""
    folder = profile_dirs(tmp_path)[0]
    folder.mkdir()
    (folder / "bad.toml").write_text(text)
    for ask in (
        lambda: read_profile(folder / "bad.toml"),
        lambda: choose_profile(spec(tmp_path), AUTO, HERE),
    ):
        with pytest.raises(UsageError, match=r"bad\.toml is not a profile") as refusal:
            ask()
        assert why in refusal.value.why


def with_older_name(folder) -> Choice:
    """A start with a flag that was renamed."""
    return Choice(spec(folder, flags=("--cuda-graph-max-bs-decode", "266")), None, "a test")


def test_ranges_of_releases():
    assert in_range("0.5.17.post1", ">=0.5.14,<0.6")
    assert not in_range("0.6.0", ">=0.5.14,<0.6")
    assert not in_range("", ">=0.5.14")
    assert in_range("0.5.17", "==0.5.17")


def test_the_printed_start_is_a_script_without_secrets(tmp_path):
    chosen = choose_profile(spec(tmp_path, flags=("--log-level", "a b")), AUTO, HERE)
    text = script(chosen, "0.5.17")
    assert "the-secret" not in text
    assert "CUDA_VISIBLE_DEVICES=3" in text
    assert "--disable-radix-cache \\\n" in text
    start = text[text.index("exec ") :]
    assert "--language-model-only" not in start
    assert "# Left out: SGLang 0.5.17 does not know --language-model-only.\n" in text
    assert "By hand room is kept back for" in text, "and so it is another start than ours"
    assert "Left out" not in script(chosen, "0.5.18")
    older = script(chosen, "0.5.14")
    assert "# Left out: SGLang 0.5.14 does not know --min-free-slots-delay.\n" in older
    assert "--cuda-graph-max-bs 266" in script(with_older_name(tmp_path), "0.5.13")
    assert "Left out" not in script(with_older_name(tmp_path), "0.5.13"), (
        "it has another name there"
    )
    assert "--log-level 'a b'" in text
    path = tmp_path / "start.sh"
    path.write_text(text)
    assert subprocess.run(["sh", "-n", path], check=False).returncode == 0
    bare = {"PATH": "/usr/bin:/bin"}
    refused = subprocess.run(["sh", path], env=bare, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "GENQ_ENGINE_KEY" in refused.stderr
