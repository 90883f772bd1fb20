"""The honesty check as part of each start, over the stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from common.errors import EngineError, Exit
from consumer import start
from consumer.engine.honesty import Honesty
from consumer.engine.honesty_texts import QUESTIONS, TEXTS
from consumer.engine.states import EngineState as S
from consumer.engine.supervisor import StartBudget, Supervisor
from tests.support.consumers import world_of
from tests.support.fake_engine import (
    FakeSglang,
    fake_spec,
    fake_state,
    running_fake,
    set_faults,
)

BUDGET = StartBudget(backoff_base_seconds=0.05, kill_seconds=0.3, poll_seconds=0.05, attempts=3)


def supervisor_of(spec, honesty) -> Supervisor:
    return Supervisor(FakeSglang(), spec, budget=BUDGET, check=honesty)


async def test_an_honest_engine_serves_and_is_checked_again_after_a_restart(tmp_path):
    spec, honesty = fake_spec(tmp_path), Honesty()
    supervisor = supervisor_of(spec, honesty)
    await supervisor.start()
    try:
        await supervisor.wait_ready()
        assert [probe.prompt for probe in honesty.record] == list(QUESTIONS)
        asked = (await fake_state(spec))["requests"]
        first = honesty.answers
        supervisor.condemn("a test")
        await supervisor.wait_for(S.STARTING)
        await supervisor.wait_ready()
        assert honesty.record is first is not honesty.answers, "those of the engine that serves"
        assert (await fake_state(spec))["requests"] == asked > 2 * len(QUESTIONS)
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
        assert any(prompt in refusal.value.why for prompt in QUESTIONS)
    finally:
        await supervisor.stop(now=True)


async def checked(spec) -> Honesty:
    """The check of an engine that it accepts."""
    honesty = Honesty()
    supervisor = supervisor_of(spec, honesty)
    await supervisor.start()
    try:
        await supervisor.wait_ready()
    finally:
        await supervisor.stop(now=True)
    return honesty


@pytest.mark.parametrize(
    ("flags", "faults", "taken"),
    [
        ((), {}, ("exercised", "exercised")),
        (("--prefix-chunk", "64"), {}, ("exercised", "exercised")),
        (("--prefix-chunk", "3000"), {}, ("exercised", "not exercised")),
        (("--disable-radix-cache",), {}, ("exercised", "no cache")),
        ((), {"no_cached_counts": True}, ("exercised", "not known")),
        ((), {"no_cached_counts": True, "no_flush": True}, ("not known", "not known")),
    ],
)
async def test_it_says_which_paths_were_exercised(tmp_path, flags, faults, taken):
    spec = fake_spec(tmp_path, *flags, "--faults", json.dumps(faults))
    with capture_logs() as logs:
        honesty = await checked(spec)
    assert (honesty.paths.uncached, honesty.paths.cached) == taken
    (accepted,) = (line for line in logs if line["event"] == "engine.honest")
    assert f"uncached {taken[0]}, cached {taken[1]}" in accepted["paths"]
    warned = [line for line in logs if line["event"] == "the honesty check left a path out"]
    assert len(warned) == sum(one.startswith("not ") for one in taken)


async def test_a_fault_of_a_hybrids_cached_path_is_found(tmp_path):
    """A question is shorter than the distance of its states, and never takes that path."""
    faults = json.dumps({"dishonest": "cached"})
    spec = fake_spec(tmp_path, "--prefix-chunk", "256", "--faults", faults)
    with pytest.raises(EngineError, match="uncached and cached disagree"):
        await checked(spec)


async def test_answers_that_were_cached_already_are_not_called_uncached(tmp_path):
    """The cache of a server that others use cannot be dropped."""
    async with running_fake(tmp_path) as spec:
        await checked(spec)
        await set_faults(spec, no_flush=True)
        paths = (await checked(spec)).paths
    assert (paths.uncached, paths.cached) == ("not exercised", "exercised")


async def test_a_tokenizer_of_another_model_is_told_and_kills_no_server(tmp_path):
    spec = fake_spec(tmp_path)
    config = Path(spec.model) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 100}))
    honesty = Honesty()
    supervisor = supervisor_of(spec, honesty)
    await supervisor.start()
    try:
        with pytest.raises(EngineError, match="tokenizer does not belong to the model") as refusal:
            await supervisor.wait_ready()
        assert supervisor.incarnation == 1
        assert "not in the vocabulary of 100" in refusal.value.why
    finally:
        await supervisor.stop(now=True)


async def test_an_engine_with_fewer_log_probabilities_than_tokens_is_not_judged(tmp_path):
    spec = fake_spec(tmp_path, "--faults", json.dumps({"few_logprobs": True}))
    with pytest.raises(EngineError, match="log-probabilities of only some tokens"):
        await checked(spec)


@pytest.mark.parametrize(("context", "long"), [(None, list(TEXTS)), (500, [])])
async def test_long_texts_are_asked_where_questions_are_too_short_for_the_cache(
    tmp_path, context, long
):
    """And where they find room."""
    honesty = await checked(fake_spec(tmp_path, "--prefix-chunk", "256", context=context))
    assert [one.prompt for one in honesty.record] == [*QUESTIONS, *long]
    assert honesty.paths.cached == ("exercised" if long else "not exercised")


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
        with pytest.raises(EngineError, match="first and now disagree") as refusal:
            await supervisor.wait_ready()
        assert "first: " in refusal.value.why
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
