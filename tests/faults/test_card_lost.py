"""A card that NVML calls lost, or says nothing of: the end of a consumer whose engine is silent.

There is no card here: a module ``pynvml`` of the test's own speaks for one, and its loss is a file.
"""

from __future__ import annotations

import asyncio
import contextlib

import psutil
import pytest

from common.errors import EngineError, Exit
from common.records import Sampling
from consumer.engine import gpu, gpu_loss, gpu_watch
from consumer.engine.api import GenerateRequest
from consumer.engine.gpu_loss import lost_at_the_end
from consumer.engine.gpu_watch import GpuWatch
from consumer.engine.states import EngineState
from consumer.engine.supervisor import StartBudget, Supervisor
from tests.support.consumers import consumer
from tests.support.fake_engine import FakeSglang, fake_spec, running_fake, set_faults
from tests.support.lost_card import CARD, LOST, RESET_REQUIRED, UNKNOWN, Driver
from tests.support.servers import eventually

row = pytest.mark.row
BUDGET = StartBudget(attempts=3, backoff_base_seconds=0.05, kill_seconds=0.3, poll_seconds=0.05)
LOOK_SECONDS = 0.05


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """What NVML says here; quiet seconds are short."""
    made = Driver(tmp_path / "driver")
    made.install(monkeypatch)
    monkeypatch.setattr(gpu_loss, "QUIET_SECONDS", 1.0)
    return made


@pytest.fixture
def mute(driver, monkeypatch):
    """The same, where one silence is soon told from a slow answer."""
    monkeypatch.setattr(gpu_watch, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(gpu, "ANSWER_SECONDS", 0.5)
    yield driver
    driver.let_go()


class Supervised:
    """A supervisor of a stand-in on GPU 0, until the end of the block."""

    def __init__(self, folder, *flags):
        spec = fake_spec(folder, *flags, gpu=0)
        self.downs: list[str] = []
        self.supervisor = Supervisor(
            FakeSglang(),
            spec,
            budget=BUDGET,
            stall_seconds=600,
            on_down=lambda _n, reason: self.downs.append(reason),
            card=GpuWatch(0, look_seconds=LOOK_SECONDS),
        )

    async def __aenter__(self):
        await self.supervisor.start()
        return self

    async def __aexit__(self, *_):
        await self.supervisor.stop(now=True)

    def request(self, tokens):
        request = GenerateRequest(f"{1:032x}", [65, 66], Sampling(max_tokens=tokens), seed=1)
        return self.supervisor.engine.generate(request)

    async def ask(self, tokens):
        return await self.supervisor.http.post(*self.request(tokens), 60)

    async def fatal(self) -> EngineError:
        async with asyncio.timeout(60):
            await self.supervisor.wait_for(EngineState.FATAL)
        return self.supervisor.last_error


@row("B5")
@pytest.mark.faults
@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (LOST, "Its driver says so again and again (GPU is lost)"),
        pytest.param("silent", "Its driver does not answer any more", marks=row("A4")),
    ],
    ids=["lost", "silent"],
)
async def test_a_consumer_whose_card_is_lost_ends_names_it_and_gives_its_items_back(
    world, loss, words
):
    """A real process: its engine hangs with items in flight, and its card is lost."""
    await world.load(40)
    driver = Driver(world.folder / "driver")
    hangs = ("--load-format", "dummy", "--hang-with", "dummy", "--token-seconds", "0.01")
    command = ("--model", world.model, "--gpu", "0", "--profile", "none", "--", *hangs)
    log = world.folder / "lost.log"
    program = ("-m", "tests.support.lost_card")
    env = {"PYTHONPATH": str(driver.folder)}
    with consumer(world.env, log, *command, program=program, **env) as process:
        await world.some_generated(20)  # the thirtieth request hangs the engine
        children = psutil.Process(process.process.pid).children(recursive=True)
        driver.lose(loss)
        assert await asyncio.to_thread(process.wait, 90) == Exit.ENGINE
        assert process.said(f"GPU 0 ({CARD}) is lost.")
        assert process.said(words)
        assert process.said("dmesg | grep -i xid")
    await eventually(lambda: not any(map(living, children)))
    seen = await world.counts()
    assert (seen.leased, seen.dead, set(seen.failures)) == (0, 0, {"engine_down"})
    (worker,) = await world.runs.workers()
    assert (worker.gauges["engine"], worker.gauges["gpu_up"]) == ("fatal", "0")
    async with running_fake(world.folder, api_key="") as other:  # of a consumer with another card
        assert await world.burst(url=other.url) == Exit.DONE
    assert sorted(result["k"] for result in world.results()) == list(range(40))
    assert {result["attempt"] for result in world.results()} == {1}


def living(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@row("B5")
@pytest.mark.parametrize("code", [LOST, RESET_REQUIRED])
async def test_a_hang_on_a_lost_card_is_fatal_long_before_the_stall_time(tmp_path, driver, code):
    async with Supervised(tmp_path) as it:
        await it.supervisor.wait_ready()
        await set_faults(it.supervisor.spec, hang=True)
        asked = asyncio.create_task(it.ask(20))
        driver.lose(code)
        error = await it.fatal()
        assert (await asked).status is None
    assert error.what == f"GPU 0 ({CARD}) is lost."
    assert "no token and no answer for 1 s" in error.why
    assert it.downs == [error.what]
    assert it.supervisor.incarnation == 1


@row("A4")
@row("B5")
async def test_a_hang_under_a_driver_that_does_not_answer_is_fatal_and_can_be_stopped(
    tmp_path, mute
):
    """No thread that is joined at the end may wait for the driver, either."""
    async with Supervised(tmp_path) as it:
        await it.supervisor.wait_ready()
        await set_faults(it.supervisor.spec, hang=True)
        asked = asyncio.create_task(it.ask(20))
        mute.silence()
        error = await it.fatal()
        assert (await asked).status is None
        await it.supervisor.stop()
        await asyncio.get_running_loop().shutdown_default_executor()
    assert error.what == f"GPU 0 ({CARD}) is lost."
    assert "driver does not answer any more" in error.why
    assert it.downs == [error.what]


@row("A4")
@row("B5")
async def test_a_crash_under_a_driver_that_does_not_answer_ends_with_the_cards_name(tmp_path, mute):
    """Its memory is looked at before and after each life, by a call that never returns."""
    async with Supervised(tmp_path) as it:
        await it.supervisor.wait_ready()
        mute.silence()
        await set_faults(it.supervisor.spec, crash_on_request=1, crash_words="unspecified failure")
        await it.ask(20)
        error = await it.fatal()
    assert error.what == f"GPU 0 ({CARD}) is lost."


@row("A4")
@row("B5")
async def test_a_driver_that_does_not_answer_at_the_start_is_not_waited_for(tmp_path, mute):
    mute.silence()
    async with Supervised(tmp_path, "--start-seconds", "600") as it:
        error = await it.fatal()
    assert error.what == "GPU 0 is lost."
    assert it.supervisor.incarnation == 1


@row("B5")
async def test_a_crash_on_a_lost_card_is_not_followed_by_another_start(tmp_path, driver):
    """Its last words alone would say nothing."""
    async with Supervised(tmp_path) as it:
        await it.supervisor.wait_ready()
        driver.lose(LOST)
        await set_faults(it.supervisor.spec, crash_on_request=1, crash_words="unspecified failure")
        await it.ask(20)
        error = await it.fatal()
    assert error.what == f"GPU 0 ({CARD}) is lost."
    assert it.supervisor.incarnation == 1


@row("B5")
async def test_a_card_that_is_lost_at_the_start_is_not_waited_for(tmp_path, driver):
    driver.lose(LOST)
    async with Supervised(tmp_path, "--start-seconds", "600") as it:
        error = await it.fatal()
    assert error.what == "GPU 0 is lost."  # it was never seen
    assert it.downs == []


@row("B5")
@pytest.mark.parametrize("loss", [LOST, "silent"])
async def test_an_engine_that_makes_tokens_has_its_card_whatever_the_driver_says(
    tmp_path, mute, loss
):
    async with Supervised(tmp_path, "--token-seconds", "0.02") as it:
        await it.supervisor.wait_ready()
        mute.lose(loss)
        path, body = it.request(150)
        body["sampling_params"]["ignore_eos"] = True
        reply = await it.supervisor.http.post(path, body, 60)  # lasts thrice the quiet time
        assert reply.ok
        assert it.downs == []


@row("B5")
async def test_only_errors_that_are_the_cards_own_and_come_again_make_it_lost(driver):
    watch = GpuWatch(0, look_seconds=0.01)
    driver.lose(UNKNOWN)
    watch.start()
    try:
        await eventually(lambda: watch.health is not None)
        assert (watch.health.up, watch.suspicion, watch.lost) == (False, "", "")
        driver.lose(LOST)
        assert await eventually(lambda: watch.lost) == "GPU is lost"
        driver.find()
        await eventually(lambda: watch.health.up)
        assert watch.lost == ""
    finally:
        watch.stop()


@row("B5")
async def test_a_card_that_was_lost_since_the_newest_look_is_seen_at_the_engine_s_end(
    driver, monkeypatch
):
    monkeypatch.setattr(gpu_watch, "LOST_LOOKS", 1)
    watch = GpuWatch(0, look_seconds=600)
    watch.start()
    try:
        await eventually(lambda: watch.health is not None)
        assert await lost_at_the_end(watch, "it crashed") is None
        driver.lose(LOST)
        assert watch.suspicion == ""  # by the newest look
        error = await lost_at_the_end(watch, "it crashed")
        assert error.what == f"GPU 0 ({CARD}) is lost."
    finally:
        watch.stop()


@row("B5")
async def test_a_look_that_takes_long_is_no_loss_and_one_that_takes_longer_is(driver, monkeypatch):
    watch = GpuWatch(0, look_seconds=0.01)
    watch.start()
    try:
        await eventually(lambda: watch.health is not None)
        driver.silence()
        await eventually(lambda: watch._silent_seconds() > 0.3)
        assert (watch.health.up, watch.suspicion, watch.lost) == (True, "", "")
        monkeypatch.setattr(gpu_watch, "SILENT_SECONDS", 0.2)
        monkeypatch.setattr(gpu_watch, "LOST_LOOKS", 3000)
        assert (watch.health.up, watch.suspicion, watch.lost) == (False, gpu_watch.SILENT, "")
        monkeypatch.setattr(gpu_watch, "LOST_LOOKS", 3)
        assert await eventually(lambda: watch.lost) == gpu_watch.SILENT
        driver.find()
        driver.let_go()
        await eventually(lambda: watch.health.up)
        assert watch.lost == ""
    finally:
        watch.stop()


def test_only_silence_under_a_lost_card_counts():
    silence = gpu_loss.Silence()
    told = [silence.seconds(now, lost=now > 2, work=now // 4) for now in range(12)]
    assert told == [0, 0, 0, 0, 0, 1, 2, 3, 0, 1, 2, 3]
