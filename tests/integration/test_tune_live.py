"""`gen-consumer tune --live`, and `check --run`: rounds that work on a real run."""

from __future__ import annotations

import json

import pytest

from common.errors import EngineError, Exit, UsageError
from common.ids import RunName
from consumer.engine.honesty import unpack
from consumer.engine.life import UnfitError
from consumer.engine.records import records
from consumer.tuning import check
from consumer.tuning.check import CheckOptions
from consumer.tuning.prompts import run_sample
from tests.support.fake_engine import FakeSglang
from tests.support.tuning import options, run

BASE = ("--state-pool", "40", "--token-seconds", "0.005", "--answer-tokens", "24")
LIES = json.dumps({"dishonest": "cached"})


async def test_what_a_live_round_generates_is_the_runs(world):
    await world.load(750, samples=2)  # the second sample's prompt is in the engine's cache
    settings = world.settings.model_copy(update={"drain_seconds": 30.0})
    live = {"prompts": "", "run": RunName("one"), "live": True, "flags": BASE, "price": 2.0}
    assert await run(settings, world.model, most_trials=1, soaks=0, **live) == Exit.DONE
    folder = next((world.settings.state_dir / "tuning").iterdir())
    data = json.loads((folder / "report.json").read_text())
    tried = [data["default"], *data["trials"]]
    counts = await world.counts()
    assert all(one["kept"] > 0 for one in tried)
    assert sum(one["kept"] for one in tried) == counts.generated
    assert counts.leased == 0
    assert counts.wasted_tokens == 0
    assert counts.queued == 1500 - counts.generated
    assert len({row["k"] for row in world.results()}) == counts.generated
    assert all(one["honesty"] == "passed" for one in tried)
    assert all(one["end_seconds"] < one["seconds"] for one in tried)
    assert data["default"]["max_running"] == 8
    assert 0.1 < data["default"]["cached_share"] <= 0.5
    assert data["trials"][0]["max_running"] == 32
    assert data["savings"]["remaining_items"] == counts.queued
    assert not records(world.settings.state_dir)


async def test_a_live_round_whose_results_nobody_stores_judges_no_setting(world):
    """Nothing more is leased past the stream's mark: the engine idles, and the run has plenty."""
    await world.load(1500)
    settings = world.settings.model_copy(update={"drain_seconds": 30.0, "stream_entries": 8})
    live = {"prompts": "", "run": RunName("one"), "live": True, "flags": BASE}
    with pytest.raises(UsageError, match="defaults were not measured") as refusal:
        await run(settings, world.model, most_trials=1, soaks=0, **live)
    assert "gen-sink is behind" in refusal.value.why
    counts = await world.counts()
    assert counts.queued == 1500 - counts.generated
    assert not records(world.settings.state_dir)


@pytest.mark.parametrize(
    "wrong", [{"allow_state_dtype": True}, {"flags": ("--load-format", "dummy")}]
)
def test_a_live_round_refuses_what_would_change_the_runs_answers(wrong):
    with pytest.raises(UsageError, match="keeps what its trials say"):
        options(**{"prompts": "", "run": RunName("one"), "live": True, "flags": (), **wrong})


async def test_a_runs_sample_holds_out_rows_that_the_search_does_not_see(world):
    world.store_run(180, thinking=False, samples=2)
    sample = await run_sample(world.store, RunName("one"), world.model, mean=77)
    seen, held = ({tuple(p.input_ids) for p in some} for some in (sample.search, sample.held_out))
    assert (len(seen), len(held)) == (100, 80)
    assert not seen & held
    assert {prompt.times for prompt in sample.search} == {2}
    assert sample.search[0].sampling.max_tokens == 64
    assert sample.output_tokens == 77


async def test_check_compares_with_the_run_and_leaves_its_reference(world, monkeypatch, capsys):
    monkeypatch.setattr(check, "engine_named", lambda _name: FakeSglang())
    await world.load(1)
    settings = world.settings.model_copy(update={"model": world.model, "profile": "none"})
    asked = CheckOptions(gpu=None, run=RunName("one"), as_json=True)
    assert await check.check(settings, asked) == Exit.DONE
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["honest"]
    assert len(said["answers"]) == 3
    reference = unpack(await world.runs.reference(RunName("one"), b""))
    assert [probe.text for probe in reference] == [one["text"] for one in said["answers"]]

    other = json.dumps({"dishonest": "always"})
    with pytest.raises(EngineError, match="answers otherwise") as refusal:
        await check.check(
            settings, CheckOptions(gpu=None, run=RunName("one"), flags=("--faults", other))
        )
    assert refusal.value.exit_code == Exit.ENGINE
    assert not records(world.settings.state_dir)


async def test_check_shows_the_texts_of_a_dishonest_engine(world, monkeypatch):
    monkeypatch.setattr(check, "engine_named", lambda _name: FakeSglang())
    settings = world.settings.model_copy(update={"model": world.model, "profile": "none"})
    with pytest.raises(UnfitError, match="contradicts itself") as refusal:
        await check.check(settings, CheckOptions(gpu=None, flags=("--faults", LIES)))
    assert refusal.value.exit_code == Exit.ENGINE
    assert "uncached: " in refusal.value.why
    assert "cached: " in refusal.value.why
