"""`gen-consumer tune --live`: rounds that work on a real run."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from common.errors import Exit, UsageError
from common.ids import RunName
from common.keys import RQ_SUSPENDED
from consumer.engine.records import records
from consumer.tuning import live
from consumer.tuning.live import LiveLoad
from consumer.tuning.opening import model_of_run
from consumer.tuning.prompts import run_sample
from consumer.tuning.results import Outcome
from consumer.tuning.space import Setting
from consumer.tuning.trial import Checks, Order
from tests.support.consumers import SECONDS
from tests.support.fake_engine import FakeSglang, fake_spec, free_port
from tests.support.servers import eventually
from tests.support.tuning import PACE, options, run

if TYPE_CHECKING:
    from consumer.tuning.steady import Pace

BASE = ("--state-pool", "40", "--token-seconds", "0.005", "--answer-tokens", "24")
FAST = ("--token-seconds", "0.001")
OTHERWISE = json.dumps({"dishonest": "always"})
WORDS = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
DEADLY = json.dumps({"crash_on_request": 6, "crash_words": WORDS})
ENDLESS = replace(PACE, measure_seconds=600.0, least_seconds=600.0)


def live_load(world, *, honest: bool = False, pace: Pace = PACE) -> LiveLoad:
    """Trials of single settings on run one."""
    return LiveLoad(
        settings=world.settings.model_copy(update={"model": world.model, "drain_seconds": 30.0}),
        engine=FakeSglang(),
        spec=fake_spec(world.folder, *BASE),
        run=RunName("one"),
        redis=world.client,
        runs=world.runs,
        store=world.store,
        pace=pace,
        checks=Checks(on=honest),
        port=free_port,
    )


def order(load: LiveLoad, *flags: str) -> Order:
    return Order(Setting(flags), until=load.clock() + 600, start_seconds=60)


async def test_what_a_live_round_generates_is_the_runs(world):
    await world.load(750, samples=2)  # the second sample's prompt is in the engine's cache
    settings = world.settings.model_copy(update={"drain_seconds": 30.0})
    real = {"prompts": "", "run": RunName("one"), "live": True, "flags": BASE, "price": 2.0}
    assert await run(settings, world.model, most_trials=1, soaks=0, **real) == Exit.DONE
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
    real = {"prompts": "", "run": RunName("one"), "live": True, "flags": BASE}
    with pytest.raises(UsageError, match="defaults were not measured") as refusal:
        await run(settings, world.model, most_trials=1, soaks=0, **real)
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


@pytest.mark.row("B5")
async def test_an_engine_that_dies_of_a_trials_setting_makes_no_item_suspect(world):
    """Each trial leases what the one before gave back; from three deaths on it would run alone."""
    queue = await world.load(300)
    load = live_load(world)
    for _ in range(3):
        trial = await load(order(load, "--answer-tokens", "100000", "--faults", DEADLY))
        assert trial.outcome is Outcome.MEMORY
    counts = await world.counts()
    assert (counts.leased, counts.dead) == (0, 0)
    again = await world.lease_all(queue, 32)
    assert set(range(6)) <= {one.item for one in again}, "those that were with it are among them"
    assert {one.deaths for one in again} == {0}


async def stop_run(world, how) -> str:
    """Stop run one; return the command that lets it go on."""
    if how == "held":
        await world.runs.hold(RunName("one"), "87 % are empty")
        return "gen-producer resume one --accept"
    if how == "paused":
        await world.runs.pause(RunName("one"))
        return "gen-producer resume one"
    await world.client.set(RQ_SUSPENDED, 1)
    return "rq resume"


@pytest.mark.parametrize("how", ["held", "paused", "suspended"])
async def test_a_live_round_of_a_run_that_waits_for_a_person_says_whom_and_starts_nothing(
    world, how
):
    await world.load(50)
    fix = await stop_run(world, how)
    real = {"prompts": "", "run": RunName("one"), "live": True, "flags": BASE}
    with pytest.raises(UsageError, match="defaults were not measured") as refusal:
        await run(world.settings, world.model, **real)
    assert how in refusal.value.why
    assert refusal.value.fix.startswith(fix)
    assert refusal.value.fix.endswith("(then the same command again)")
    assert not (world.settings.state_dir / "engines").exists(), "no server was started"


async def test_a_run_that_is_paused_under_a_trial_stops_it(world, monkeypatch):
    monkeypatch.setattr(live, "_WITHHELD_SECONDS", 0.3)
    await world.load(1500)
    load = live_load(world, pace=ENDLESS)
    task = asyncio.create_task(load(order(load)))
    await world.some_generated()
    await world.runs.pause(RunName("one"))
    trial = await task
    assert trial.outcome is Outcome.STOPPED
    said = "Run one is paused: nothing of it is handed out. Somebody ran `gen-producer pause`."
    assert trial.why == said
    assert trial.fix == "gen-producer resume one"
    assert trial.kept == (await world.counts()).generated
    assert (await world.counts()).leased == 0


async def test_a_run_that_asks_for_equal_tokens_stops_a_trial_and_names_the_flag(
    world, monkeypatch
):
    monkeypatch.setattr(live, "_WITHHELD_SECONDS", 0.3)
    await world.load(20, reproducible=True)
    load = live_load(world, pace=ENDLESS)
    trial = await load(order(load))
    assert trial.outcome is Outcome.STOPPED
    assert "asks for equal tokens" in trial.why
    assert "-- --enable-deterministic-inference" in trial.fix


async def test_a_trial_that_answers_otherwise_than_the_runs_first_engine_is_dishonest(
    world, monkeypatch
):
    """It agrees with itself, and the first engine of the run was another than the round's."""
    monkeypatch.setattr(live, "_WITHHELD_SECONDS", 0.3)
    await world.load(1500)
    first = live_load(world, honest=True)
    assert (await first(order(first, *FAST))).honesty == "passed"
    done = (await world.counts()).generated
    other = live_load(world, honest=True, pace=ENDLESS)
    trial = await other(order(other, *FAST, "--faults", OTHERWISE))
    assert trial.outcome is Outcome.DISHONEST
    assert trial.why == "it answers otherwise than the run's first engine"
    assert "first: " in trial.honesty, "the texts side by side"
    assert (trial.kept, (await world.counts()).generated) == (0, done)
    assert not other.checks.record, "it is no measure for others"


async def test_a_runs_sample_holds_out_rows_that_the_search_does_not_see(world):
    world.store_run(180, thinking=False, samples=2)
    sample = await run_sample(world.store, RunName("one"), world.model, mean=77)
    seen, held = ({tuple(p.input_ids) for p in some} for some in (sample.search, sample.held_out))
    assert (len(seen), len(held)) == (100, 80)
    assert not seen & held
    assert {prompt.times for prompt in sample.search} == {2}
    assert sample.search[0].sampling.max_tokens == 64
    assert sample.output_tokens == 77


async def test_a_model_that_the_run_does_not_ask_for_is_refused_before_any_start(world):
    await world.load(5)
    real = {"prompts": "", "run": RunName("one"), "live": True, "flags": BASE}
    with pytest.raises(UsageError, match="Run one is not for another-model") as refusal:
        await run(world.settings, "/models/another-model", **real)
    assert "It asks for tiny-model" in refusal.value.why
    assert "unset GENQ_MODEL" in refusal.value.fix
    assert not (world.settings.state_dir / "engines").exists(), "no server was started"
    named = world.settings.model_copy(update={"model": "/models/another-model"})
    assert model_of_run(named, RunName("one"), world.store) == named, "its prompts serve any model"


async def test_a_run_that_runs_out_under_a_trial_says_so_and_asks_for_no_more_minutes(world):
    await world.load(5)
    load = live_load(world, pace=ENDLESS)
    trial = await load(order(load))
    assert (trial.outcome, trial.why) == (Outcome.LATE, "the run has nothing more to lease")
    assert trial.fix == "gen-producer status one"
    assert (await world.counts()).generated == 5


async def until_it_finishes(load: LiveLoad, task: asyncio.Task) -> None:
    """Cancel a trial as the first signal does; return once it finishes what is in flight."""
    finishing = asyncio.Event()
    load.seen = lambda state, _meter: finishing.set() if "finishing" in state else None
    task.cancel()
    await asyncio.wait_for(finishing.wait(), SECONDS)


async def test_a_signal_while_a_trial_finishes_what_is_in_flight_lets_it_finish(world):
    """It may come when a trial is measured, and its engine has some answers to give yet."""
    await world.load(300)
    load = live_load(world, pace=ENDLESS)
    task = asyncio.create_task(load(order(load)))
    await world.some_generated(8)
    await until_it_finishes(load, task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, SECONDS)
    counts = await world.counts()
    assert (counts.leased, counts.wasted_tokens) == (0, 0)
    assert counts.generated + counts.queued == 300
    assert not records(world.folder), "no server is left"


async def test_a_second_signal_gives_what_is_in_flight_back_at_once(world):
    await world.load(300)
    load = live_load(world, pace=ENDLESS)
    load.settings = load.settings.model_copy(update={"drain_seconds": 600.0})
    task = asyncio.create_task(load(order(load, "--token-seconds", "30")))

    async def some_leased() -> bool:
        return (await world.counts()).leased > 0

    await eventually(some_leased, SECONDS)
    await until_it_finishes(load, task)
    task.cancel()
    load.hurry.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, SECONDS)
    counts = await world.counts()
    assert (counts.leased, counts.queued) == (0, 300)
    assert not records(world.folder), "no server is left"


async def test_a_trial_that_hangs_is_not_waited_for_and_tells_nothing_of_how_one_ends(world):
    await world.load(50)
    load = live_load(world, pace=replace(ENDLESS, stall_seconds=1.5))
    load.settings = load.settings.model_copy(update={"drain_seconds": 600.0})
    hangs = order(load, "--faults", json.dumps({"hang": True}))
    trial = await asyncio.wait_for(load(hangs), SECONDS)
    assert trial.outcome is Outcome.HUNG
    assert load._drained_seconds == live._DRAIN_SECONDS
    counts = await world.counts()
    assert (counts.leased, counts.queued) == (0, 50)
