"""Engines that fail in every way, under whole consumers: nothing lost, nobody charged wrongly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest
import structlog

from common.errors import EngineError, Exit
from common.records import Sampling
from consumer import start
from consumer.engine.supervisor import StartBudget
from producer.status.view import worker_lines
from tests.support.fake_engine import FakeSglang, fake_state, running_fake, set_faults
from tests.support.servers import eventually

if TYPE_CHECKING:
    from tests.support.consumers import World

row = pytest.mark.row
BUDGET = StartBudget(attempts=3, backoff_base_seconds=0.05, kill_seconds=0.3, poll_seconds=0.05)
SLOW = ("--token-seconds", "0.01", "--answer-tokens", "40")  # two answers a second and place
ENDLESS = ("--token-seconds", "0.02", "--answer-tokens", "100000")
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
GPU_LOST = "RuntimeError: CUDA error: GPU is lost"


@pytest.fixture
def launched(monkeypatch):
    """What consumers launch as SGLang is the stand-in; holds each one's spec, to set faults by."""
    specs = []
    real = start.engine_spec

    def remember(settings, options):
        specs.append(real(settings, options))
        return specs[-1]

    monkeypatch.setattr(start, "engine_named", lambda _name: FakeSglang())
    monkeypatch.setattr(start, "engine_spec", remember)
    return specs


async def engine_starts(world: World) -> int:
    async def shown() -> int:
        return sum(int(w.gauges.get("engine_starts", 0)) for w in await world.runs.workers())

    return await eventually(shown)


def assert_each_once_and_uncharged(world: World, n: int) -> None:
    results = world.results()
    assert sorted(r["k"] for r in results) == list(range(n))
    assert {r["attempt"] for r in results} == {1}


def faults(**switches) -> tuple[str, str]:
    return ("--faults", json.dumps(switches))


@pytest.mark.parametrize(
    "switch",
    [
        pytest.param("hang", marks=row("B2")),
        pytest.param("detokenizer_dead", marks=[row("B9"), pytest.mark.faults]),
        pytest.param("forget_requests", marks=[row("B9"), pytest.mark.faults]),
    ],
)
async def test_an_engine_that_gives_nothing_is_replaced_after_the_runs_stall_time(
    world, launched, switch
) -> None:
    """Its health check stays good. The default stall time is minutes, the run's is a second."""
    await world.load(40, stall_seconds=1.0)
    async with world.serving(budget=BUDGET, flags=SLOW):
        await world.some_generated()
        await set_faults(launched[0], **{switch: True})
        await world.generated(40)
        assert await engine_starts(world) == 2
    assert_each_once_and_uncharged(world, 40)
    assert set((await world.counts()).failures) == {"engine_down"}


@row("B3")
async def test_a_busy_engine_whose_health_says_503_is_not_killed(world, launched) -> None:
    await world.load(24, stall_seconds=1.0)
    flags = ("--token-seconds", "0.02", "--answer-tokens", "60")  # an answer takes 1.2 s and more
    async with world.serving(budget=BUDGET, flags=flags):
        await world.some_generated()
        await set_faults(launched[0], health_status=503)
        await world.generated(24)
        assert await engine_starts(world) == 1
    assert (await world.counts()).failures == {}


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, marks=[row("B1"), row("G2")]),
        pytest.param(signal.SIGSTOP, marks=[row("B2"), pytest.mark.faults]),
    ],
)
async def test_an_engine_that_is_killed_or_stopped_from_outside_is_replaced(
    world, launched, number
) -> None:
    """SIGKILL is what the system's out-of-memory killer sends."""
    await world.load(40, stall_seconds=1.0)
    async with world.serving(budget=BUDGET, flags=SLOW):
        await world.some_generated()
        os.kill(engine_process(launched[0].port), number)
        await world.generated(40)
        assert await engine_starts(world) == 2
    assert_each_once_and_uncharged(world, 40)


def engine_process(port: int) -> int:
    children = psutil.Process().children(recursive=True)
    (pid,) = [
        child.pid
        for child in children
        if "tests.support.fake_sglang" in child.cmdline() and "guard.py" not in str(child.cmdline())
        if str(port) in child.cmdline()
    ]
    return pid


@row("B4")
async def test_starts_that_fail_end_with_the_engines_last_words_and_nothing_is_leased(
    world, launched
) -> None:
    await world.load(10)
    async with world.serving(budget=BUDGET, flags=("--refuse", OUT_OF_MEMORY)) as serving:
        with pytest.raises(EngineError) as refusal:
            await serving.task
    assert "3 times in a row" in refusal.value.what
    assert OUT_OF_MEMORY in refusal.value.why
    assert "--mem-fraction-static" in refusal.value.fix
    seen = await world.counts()
    assert (seen.queued, seen.since_lease) == (10, None)


async def test_a_fault_of_our_own_in_service_ends_the_consumer_and_gives_its_items_back(
    world, launched, monkeypatch
) -> None:
    """Nothing would watch the engine any more, nor tell the pump to stop leasing for it."""
    await world.load(40)

    async def broken(*_):
        raise RuntimeError("a fault of ours")

    async with world.serving(budget=BUDGET, flags=SLOW) as serving:
        await world.some_generated()
        monkeypatch.setattr(FakeSglang, "load", broken)
        with pytest.raises(EngineError, match="The supervisor itself failed"):
            await asyncio.wait_for(serving.task, 60)
    seen = await world.counts()
    assert (seen.leased, seen.dead) == (0, 0)


async def test_a_second_signal_while_the_engine_is_being_ended_is_now(world, launched) -> None:
    """The engine takes its time: SIGTERM does nothing to it."""
    await world.load(1)
    budget = replace(BUDGET, stop_seconds=90.0)
    with structlog.testing.capture_logs() as logs:
        async with world.serving(budget=budget, flags=("--ignore-sigterm",)) as serving:
            await world.generated(1)
            serving.stopping.ask(Exit.TERMINATED)
            await eventually(lambda: "draining" in [line.get("state") for line in logs])
            serving.stopping.ask(Exit.TERMINATED)
            assert await asyncio.wait_for(serving.task, 30) == Exit.TERMINATED


@row("B4")
async def test_a_flag_that_the_engine_does_not_know_ends_the_command_with_code_6(world) -> None:
    await world.load(5)
    with world.consume("--", "--no-such-flag") as process:
        assert process.wait(100) == Exit.ENGINE
        assert process.said("unrecognized arguments: --no-such-flag")
        assert process.said("Remove or correct the flag")
    assert (await world.counts()).since_lease is None


@row("B4")
async def test_a_slow_start_is_waited_for_and_one_beyond_its_budget_is_not(world, launched) -> None:
    await world.load(10)
    brief = StartBudget(start_seconds=0.3, attempts=1, kill_seconds=0.1)
    with pytest.raises(EngineError, match=r"not ready within 0\.3 s"):
        await world.burst(budget=brief, flags=("--start-seconds", "60"))
    assert await world.burst(budget=BUDGET, flags=("--start-seconds", "1.5")) == Exit.DONE
    assert_each_once_and_uncharged(world, 10)


@row("B4")
@pytest.mark.faults
async def test_children_that_ignore_sigterm_and_keep_the_port_do_not_stop_the_next_start(
    world, launched
) -> None:
    await world.load(40)
    async with world.serving(budget=BUDGET, flags=("--stubborn-child", *SLOW)):
        await world.some_generated()
        await set_faults(launched[0], crash_on_request=1)
        await world.generated(40)
        assert await engine_starts(world) == 2
    assert_each_once_and_uncharged(world, 40)


@row("B5")
async def test_a_lost_gpu_is_the_end_of_its_consumer_and_others_go_on(world, launched) -> None:
    await world.load(60)
    async with running_fake(world.folder, *SLOW, api_key="") as other:
        broken = faults(crash_on_request=5, crash_words=GPU_LOST, crash_code=137)
        async with world.serving(budget=BUDGET, flags=broken) as lost:
            with pytest.raises(EngineError, match="code 137") as refusal:
                await lost.task
        assert "GPU is lost" in refusal.value.why
        assert "replacement" in refusal.value.fix
        assert await world.burst(url=other.url) == Exit.DONE
    assert_each_once_and_uncharged(world, 60)


@row("B5")
async def test_running_out_of_gpu_memory_in_mid_run_is_a_restart(world, launched) -> None:
    await world.load(40)
    async with world.serving(budget=BUDGET, flags=SLOW):
        await world.some_generated()
        await set_faults(launched[0], crash_on_request=1, crash_words=OUT_OF_MEMORY)
        await world.generated(40)
        assert await engine_starts(world) == 2
    assert_each_once_and_uncharged(world, 40)


@row("B5")
async def test_an_engine_that_runs_out_of_memory_twice_comes_back_smaller(world, launched) -> None:
    """What it takes now is in the log and on the status screen; nobody is charged for it."""
    await world.load(40)
    broken = {"crash_on_request": 12, "crash_above": 0.91, "crash_words": OUT_OF_MEMORY}
    flags = ("--mem-fraction-static", "0.93", *SLOW, *faults(**broken))
    change = "--mem-fraction-static 0.93 -> 0.9"
    with structlog.testing.capture_logs() as logs:
        async with world.serving(budget=BUDGET, flags=flags):
            await world.generated(40)
            assert await engine_starts(world) == 3
            (worker,) = await world.runs.workers()
    assert_each_once_and_uncharged(world, 40)
    assert [log["change"] for log in logs if log["event"] == "engine.lowered"] == [change]
    assert f"for want of GPU memory: {change}" in worker_lines([worker])[0]


@row("B6")
async def test_an_abort_within_a_good_answer_is_no_success_and_charges_nobody(world) -> None:
    async with running_fake(world.folder, api_key="") as engine:
        await set_faults(engine, abort_answers=5)
        await world.load(30)
        assert await world.burst(url=engine.url) == Exit.DONE
    assert_each_once_and_uncharged(world, 30)
    assert {r["finish_reason"] for r in world.results()} <= {"stop", "length"}
    assert (await world.counts()).failures == {"aborted": 5}


@row("B7")
async def test_a_storm_of_429_charges_nobody_and_uses_up_no_delivery(world) -> None:
    async with running_fake(world.folder, api_key="") as engine:
        await set_faults(engine, storm_status=429, storm_count=16)
        await world.load(30)
        assert await world.burst(url=engine.url) == Exit.DONE
    assert_each_once_and_uncharged(world, 30)
    seen = await world.counts()
    assert (seen.dead, seen.failures) == (0, {"busy": 16})


async def test_requests_that_were_given_up_are_aborted_and_never_exceed_the_window(world) -> None:
    """The engine itself would look for a lost client every four seconds only."""
    await world.load(40, sampling=Sampling(max_tokens=3000), request_seconds=1.0)
    async with running_fake(world.folder, *ENDLESS, api_key="") as engine:
        async with world.serving(url=engine.url):

            async def many() -> bool:
                return (await fake_state(engine))["requests"] >= 30

            await eventually(many, 60)
        state = await fake_state(engine)
    assert state["most_jobs"] <= 10  # the window over 8 places
    assert state["aborted"] >= 20
    seen = await world.counts()
    assert set(seen.failures) == {"timeout"}
    assert seen.generated == 0


@row("B1")
@row("F4")
@pytest.mark.faults
@pytest.mark.timeout(180)
async def test_two_rows_that_kill_the_engine_end_dead_and_nothing_else_does(
    world, launched
) -> None:
    """They die with neighbours thrice, then alone; a healthy engine is not given up for that."""
    await world.load(14, texts={3: "poison", 9: "poison too"})
    budget = StartBudget(backoff_base_seconds=0.01, backoff_cap_seconds=0.02, kill_seconds=0.1)
    flags = faults(kill_text="poison")
    assert await world.burst(seconds=150, budget=budget, flags=flags) == Exit.DONE
    seen = await world.counts()
    assert (seen.generated, seen.dead) == (12, 2)
    assert {r["attempt"] for r in world.results()} == {1}
    dead = await world.runs.failures("one", limit=10)
    assert sorted(one.item for one in dead) == [3, 9]
    assert {one.verdict for one in dead} == {"engine_down"}
