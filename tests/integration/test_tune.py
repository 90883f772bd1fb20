"""`gen-consumer tune` and `check` over the stand-in: real processes, capacity by launch flags."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from common.errors import ConflictError, Exit
from common.settings import load_settings
from consumer.engine.honesty import Honesty
from consumer.engine.process import session_members
from consumer.engine.records import records
from consumer.tuning import opening, tune
from consumer.tuning.opening import base_spec, round_folder
from consumer.tuning.profiles import read_profile
from consumer.tuning.prompts import random_sample
from consumer.tuning.results import Outcome
from consumer.tuning.space import Setting
from consumer.tuning.trial import Checks, Order, OwnLoad, Running
from tests.support.consumers import ROOT
from tests.support.fake_engine import FakeSglang, fake_spec, free_port
from tests.support.servers import eventually_sync
from tests.support.tiny_tokenizer import build_model_folder
from tests.support.tuning import BASE, PACE, options, run

SECONDS = 90.0


@pytest.fixture
def model(tmp_path):
    return str(build_model_folder(tmp_path / "tiny-model"))


@pytest.fixture
def settings(tmp_path):
    return load_settings(state_dir=tmp_path / "state")


def started(settings, model, most, log) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.support.tuning", str(settings.state_dir), model, most]
    with log.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, env=os.environ.copy())


def no_engine_left(settings) -> bool:
    return not any(session_members(one.session) for one in records(settings.state_dir).values())


def wait_for(process, log, text) -> None:
    def said() -> bool:
        assert process.poll() is None, log.read_text()
        return text in log.read_text()

    eventually_sync(said, SECONDS)


async def test_a_round_that_was_killed_goes_on_and_finds_the_better_flags(
    settings, model, tmp_path
):
    log = tmp_path / "killed.log"
    process = started(settings, model, "4", log)
    wait_for(process, log, "trial 0: ok")
    wait_for(process, log, "trial 1: --")
    process.kill()
    process.wait()
    assert await run(settings, model, most_trials=4, soaks=1) == Exit.DONE
    assert no_engine_left(settings)

    folder = next((settings.state_dir / "tuning").iterdir())
    data = json.loads((folder / "report.json").read_text())
    assert "--disable-radix-cache" in data["winner"]["flags"]
    assert data["winner"]["running"] > 2 * data["default"]["running"]
    assert data["gain"] > 1.5
    assert data["confirmed"] is True
    lie = next(t for t in data["trials"] if "--disable-prefill-cuda-graph" in t["flags"])
    assert lie["outcome"] == "dishonest"
    assert "uncached and crowd disagree" in lie["honesty"]
    assert len({tuple(trial["flags"]) for trial in data["trials"]}) == len(data["trials"]) == 4
    assert data["spent_seconds"] < data["minutes"] * 60

    profile = read_profile(settings.state_dir / "profiles" / "tuned-tiny-model.toml")
    assert "--disable-radix-cache" in profile.flags
    assert profile.window == data["winner"]["window"]
    assert not profile.auto, "the card is not known"
    said = re.search(r"([\d.]+) x the defaults", (folder / "report.md").read_text())
    assert float(said[1]) == pytest.approx(data["gain"], abs=0.006), "both are rounded"


def test_a_round_that_is_stopped_leaves_no_server(settings, model, tmp_path):
    log = tmp_path / "stopped.log"
    process = started(settings, model, "6", log)
    eventually_sync(lambda: bool(records(settings.state_dir)), SECONDS)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == Exit.TERMINATED, log.read_text()
    assert not records(settings.state_dir)
    assert no_engine_left(settings)


async def test_a_signal_while_a_round_opens_ends_it(settings, model, monkeypatch):
    """To read and render a run's prompts may take minutes."""
    reading = asyncio.Event()

    async def endless(*_):
        reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(tune, "sample_of", endless)
    task = asyncio.create_task(run(settings, model))
    await asyncio.wait_for(reading.wait(), SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, SECONDS) == Exit.TERMINATED


def own_load(tmp_path, *flags: str) -> OwnLoad:
    checks = Checks(random_weights=True)
    spec = fake_spec(tmp_path, *BASE, *flags)
    sample = random_sample("random:16:24")
    return OwnLoad(FakeSglang(), spec, sample, PACE, checks, free_port)


async def test_a_trial_that_is_cancelled_twice_leaves_no_server(tmp_path, monkeypatch):
    """As a signal does that comes while a trial's server is ended."""
    ending, whole = asyncio.Event(), Running.end

    async def end(self) -> None:
        ending.set()
        await whole(self)

    monkeypatch.setattr(Running, "end", end)
    load = own_load(tmp_path)
    load.pace = replace(PACE, measure_seconds=600.0, least_seconds=600.0)
    steady = asyncio.Event()
    load.seen = lambda state, _meter: steady.set() if state == "steady" else None
    task = asyncio.create_task(load(Order(Setting(), until=load.clock() + 600, start_seconds=60)))
    await asyncio.wait_for(steady.wait(), SECONDS)
    task.cancel()
    await asyncio.wait_for(ending.wait(), SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, SECONDS)
    assert not records(tmp_path)


async def test_a_server_that_hangs_under_load_is_a_result(tmp_path):
    load = own_load(tmp_path)
    load.pace = replace(PACE, stall_seconds=1.5)
    setting = Setting(("--schedule-policy", "lpm"), window=10)
    order = Order(setting, until=load.clock() + 600, start_seconds=60)
    trial = await load(order)
    assert trial.outcome is Outcome.HUNG
    assert trial.honesty == "passed"
    assert trial.score == 0.0
    assert not records(tmp_path)


async def test_a_start_that_finds_no_memory_is_a_result(tmp_path):
    load = own_load(tmp_path)
    setting = Setting(("--chunked-prefill-size", "16384"))
    trial = await load(Order(setting, until=load.clock() + 600, start_seconds=60))
    assert trial.outcome is Outcome.MEMORY
    assert "out of memory" in trial.why
    other = own_load(tmp_path, "--refuse", "something else")
    trial = await other(Order(Setting(), until=load.clock() + 600, start_seconds=60))
    assert trial.outcome is Outcome.CRASHED, "the words of the start before are not its own"
    assert not records(tmp_path)


async def test_a_start_that_takes_too_long_is_a_result(tmp_path):
    load = own_load(tmp_path, "--start-seconds", "60")
    trial = await load(Order(Setting(), until=load.clock() + 600, start_seconds=0.1))
    assert trial.outcome is Outcome.HUNG
    late = await load(Order(Setting(), until=load.clock() + 0.1, start_seconds=60))
    assert late.outcome is Outcome.LATE
    assert not records(tmp_path)


async def test_random_weights_are_checked_by_their_log_probabilities_alone(tmp_path):
    load = own_load(tmp_path)
    first = await load(Order(Setting(window=8), until=load.clock() + 600, start_seconds=60))
    assert first.outcome is Outcome.OK
    assert first.answered
    assert 1 <= first.output_tokens <= 24
    assert 0 < first.end_seconds < first.seconds
    assert [probe.prompt for probe in load.checks.record] == [
        f"random tokens {n}" for n in range(3)
    ]
    assert Honesty(reference=load.checks.record).record


async def test_two_calls_of_one_round_exclude_each_other(settings, model, monkeypatch):
    monkeypatch.setattr(opening, "_LOCK_SECONDS", 0.1)
    its = settings.model_copy(update={"model": model})
    async with AsyncExitStack() as stack:
        spec = base_spec(its, options())
        await round_folder(its, options(), spec, stack)
        with pytest.raises(ConflictError, match="under way"):
            await run(settings, model)
