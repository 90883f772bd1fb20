"""The report of a round, and the profile that it leaves."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from common.duration import duration
from common.ids import RunName
from consumer.cli import command as gen_consumer
from consumer.tuning.opening import TuneOptions
from consumer.tuning.profiles import choose, profile_of, profile_text
from consumer.tuning.report import (
    Facts,
    as_data,
    as_markdown,
    by_name_only,
    profile_of_round,
)
from consumer.tuning.results import trial_of
from tests.support.rounds import FACTS, round_of
from tests.support.simulated import BASE, CARD, SHAPE, Clock, SimulatedServers


async def test_the_report_and_the_profile_tell_what_was_gained(tmp_path):
    result = await round_of(tmp_path, SimulatedServers(Clock()), minutes=30).run()
    facts = Facts("Qwen3.6-27B", BASE, "a test", 30.0, remaining_items=900_000, price=3.0)
    data, text = as_data(result, facts), as_markdown(result, facts)
    saved = data["savings"]
    assert saved["hours_before"] == pytest.approx(900_000 * 256 / result.before / 3600, rel=1e-3)
    assert saved["money_saved"] == pytest.approx(3.0 * saved["hours_saved"], rel=1e-2)
    assert f"{result.after / result.before:.2f} x the defaults" in text
    before, after = (duration(3600 * saved[f"hours_{when}"]) for when in ("before", "after"))
    assert f"remaining prompts on one card: {after} instead of {before}, " in text
    assert 0.5 < data["roofline_share"] < 0.8
    assert [trial_of(one) for one in data["trials"]] == list(result.trials)
    profile = profile_of_round(result, facts, today="2026-01-01")
    assert profile.name == "tuned-h200-qwen3.6-27b"
    assert profile.auto
    assert profile.origin["confirmed"] == "A B A B on held-out prompts"
    assert profile.match.sglang == ">=0.5.17,<0.6"
    assert "dummy" not in profile.flags
    assert profile.flags[0] == "--language-model-only"
    assert profile.window == result.winner.window

    import tomllib  # noqa: PLC0415

    assert profile_of(tomllib.loads(profile_text(profile))) == profile


async def test_the_report_tells_of_each_parameter_what_it_was_and_what_it_is(tmp_path):
    result = await round_of(tmp_path, SimulatedServers(Clock()), minutes=12).run()
    told = {
        one["name"]: (one["default"], one["tuned"]) for one in as_data(result, FACTS)["parameters"]
    }
    flags = dict(zip(result.winner.flags, result.winner.flags[1:], strict=False))
    assert told["may run"] == (f"{result.baseline.max_running}", f"{result.winner.max_running}")
    assert told["most in flight"][1] == f"{result.winner.window}"
    assert told["`--disable-radix-cache`"] == ("off", "on")
    assert told["`--max-running-requests`"] == ("-", flags["--max-running-requests"])
    changed = {name.strip("`") for name in told if name.startswith("`")}
    assert changed == {word for word in result.winner.flags if word.startswith("--")}
    slow = replace(
        result.winner, flags=("--chunked-prefill-size=16384", "--mem-fraction-static", "0.93")
    )
    slow = replace(slow, tokens_per_second=9e9, state_slots=266)
    other = replace(
        result, trials=(slow,), soak=(), baseline=replace(result.baseline, state_slots=245)
    )
    text = as_markdown(other, FACTS)
    assert "| `--chunked-prefill-size` | 8192 | 16384 |" in text
    assert "| `--mem-fraction-static` | 0.903 | 0.93 |" in text
    assert "| state slots | 245 | 266 |" in text
    blind = replace(other, space=replace(other.space, shape=None))
    assert "| `--mem-fraction-static` | - | 0.93 |" in as_markdown(blind, FACTS)


async def test_both_rates_of_a_report_are_of_the_same_trials(tmp_path):
    """A request has 256 tokens here, in the search and in the confirmation alike."""
    servers = SimulatedServers(Clock(), held_out=lambda _setting, rate: 0.8 * rate)
    result = await round_of(tmp_path, servers, minutes=30).run()
    assert result.confirmed
    data = as_data(result, FACTS)
    for when in ("before", "after"):
        rate = data[f"{when}_tokens_per_second"]
        assert data[f"requests_per_second_{when}"] == pytest.approx(rate / 256, rel=1e-3)
    said = f"| requests/s | {result.before / 256:,.2f} | {result.after / 256:,.2f} |"
    assert said in as_markdown(result, FACTS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--kv-cache-dtype fp8_e4m3", "--kv-cache-dtype"),
        ("--quantization=fp8", "--quantization"),
        ("--context-length 4096 --mamba-ssm-dtype bfloat16", "--context-length, --mamba-ssm-dtype"),
        ("--json-model-override-args {}", "--json-model-override-args"),
        ("--max-running-requests 64 --cuda-graph-max-bs 64 --random-seed -1", ""),
        ("--speculative-algorithm NEXTN --speculative-num-steps 3 --attention-backend fa3", ""),
    ],
)
async def test_flags_of_all_trials_that_may_change_answers_keep_a_profile_from_being_taken(
    tmp_path, given, said
):
    result = await round_of(tmp_path, SimulatedServers(Clock()), minutes=30).run()
    facts = replace(FACTS, base=(*BASE, *given.split()))
    profile = profile_of_round(result, facts)
    assert profile.auto == (not said)
    assert by_name_only(result, facts).startswith(f"{said}, given for all trials" if said else "")
    assert bool(choose([profile], SHAPE, CARD.name, "0.5.17")) == (not said)


async def test_a_tuned_profile_is_for_its_models_precision(tmp_path):
    result = await round_of(tmp_path, SimulatedServers(Clock()), minutes=30).run()
    half = replace(SHAPE, weight_bytes=round(0.55 * SHAPE.weight_bytes))
    for tuned, other in ((SHAPE, half), (half, SHAPE)):
        profile = profile_of_round(replace(result, space=replace(result.space, shape=tuned)), FACTS)
        assert choose([profile], tuned, CARD.name, "0.5.17") is profile
        assert choose([profile], other, CARD.name, "0.5.17") is None
        (miss,) = profile.match.misses(other, CARD.name, "0.5.17")
        assert miss == f"the model's weights take {other.weight_bytes / 1e9:.1f} GB"


@pytest.mark.parametrize(
    "asked",
    [
        TuneOptions(gpu=3, minutes=30.0, run=RunName("my-run"), live=True, price=2.5),
        TuneOptions(gpu=None, minutes=7.5, prompts="my prompts.jsonl", allow_state_dtype=True),
        TuneOptions(gpu=0, minutes=8.0, prompts="random:9:9", card="H200", flags=("--x", "a b")),
    ],
)
def test_the_command_of_a_report_asks_for_the_same_round(asked):
    said = asked.command("/models/one two")
    words = shlex.split(said)
    assert words[:2] == ["gen-consumer", "tune"]
    given = gen_consumer.commands["tune"].make_context("tune", words[2:]).params
    assert (given["live"] if asked.live else given["run"]) == asked.run
    assert given["model"] == (None if asked.run else "/models/one two")
    assert (given["prompts"] or "") == asked.prompts
    for name in ("gpu", "minutes", "price", "card", "allow_state_dtype", "allow_kv_dtype", "flags"):
        assert given[name] == getattr(asked, name)
