"""The honesty check as part of each start, over the stand-in."""

from __future__ import annotations

import json

import pytest

from common.errors import EngineError, Exit
from consumer import start
from consumer.engine.honesty import PROMPTS, Honesty
from consumer.engine.states import EngineState as S
from consumer.engine.supervisor import StartBudget, Supervisor
from tests.support.consumers import world_of
from tests.support.fake_engine import FakeSglang, fake_spec, fake_state

BUDGET = StartBudget(backoff_base_seconds=0.05, kill_seconds=0.3, poll_seconds=0.05, attempts=3)


def supervisor_of(spec, honesty) -> Supervisor:
    return Supervisor(FakeSglang(), spec, budget=BUDGET, check=honesty)


async def test_an_honest_engine_serves_and_is_checked_again_after_a_restart(tmp_path):
    spec, honesty = fake_spec(tmp_path), Honesty()
    supervisor = supervisor_of(spec, honesty)
    await supervisor.start()
    try:
        await supervisor.wait_ready()
        assert [probe.prompt for probe in honesty.record] == list(PROMPTS)
        asked = (await fake_state(spec))["requests"]
        supervisor.condemn("a test")
        await supervisor.wait_for(S.STARTING)
        await supervisor.wait_ready()
        assert (await fake_state(spec))["requests"] == asked > 2 * len(PROMPTS)
    finally:
        await supervisor.stop(now=True)


@pytest.mark.parametrize("case", ["uncached", "cached", "crowd"])
async def test_an_engine_that_contradicts_itself_is_fatal_before_its_first_item(tmp_path, case):
    faults = json.dumps({"dishonest": case})
    slow = ("--token-seconds", "0.05")  # so that a crowd is there together
    supervisor = supervisor_of(fake_spec(tmp_path, "--faults", faults, *slow), Honesty())
    await supervisor.start()
    try:
        with pytest.raises(EngineError, match="contradicts itself") as refusal:
            await supervisor.wait_ready()
        assert supervisor.state is S.FATAL
        assert supervisor.incarnation == 1
        assert any(prompt in refusal.value.why for prompt in PROMPTS)
    finally:
        await supervisor.stop(now=True)


async def test_an_engine_that_disagrees_with_the_runs_first_one_is_refused(tmp_path):
    spec, first = fake_spec(tmp_path), Honesty()
    supervisor = supervisor_of(spec, first)
    await supervisor.start()
    await supervisor.wait_ready()
    await supervisor.stop(now=True)

    other = {"dishonest": "always"}
    spec = fake_spec(tmp_path, "--faults", json.dumps(other))
    supervisor = supervisor_of(spec, Honesty(reference=first.record))
    await supervisor.start()
    try:
        with pytest.raises(EngineError, match="contradicts"):
            await supervisor.wait_ready()
    finally:
        await supervisor.stop(now=True)


async def test_an_engine_that_answers_nothing_is_restarted_not_refused(tmp_path):
    faults = json.dumps({"fail_fast": True})
    supervisor = supervisor_of(fake_spec(tmp_path, "--faults", faults), Honesty())
    await supervisor.start()
    try:
        with pytest.raises(EngineError, match="3 times in a row"):
            await supervisor.wait_ready()
        assert supervisor.incarnation == 3
    finally:
        await supervisor.stop(now=True)


async def test_a_consumer_checks_its_engine_before_it_leases_anything(
    settings, store, service_env, tmp_path, monkeypatch
):
    monkeypatch.setattr(start, "engine_named", lambda _name: FakeSglang())
    lies = ("--token-seconds", "0.02", "--faults", json.dumps({"dishonest": "cached"}))
    async with world_of(settings, store, service_env, tmp_path) as world:
        await world.load(5)
        with pytest.raises(EngineError, match="contradicts itself"):
            await world.burst(honesty=True, budget=BUDGET, flags=lies)
        assert (await world.counts()).queued == 5
        assert await world.burst(honesty=True, budget=BUDGET) == Exit.DONE
        assert (await world.counts()).generated == 5
