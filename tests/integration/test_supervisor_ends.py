"""Ends that are not the engine's own doing alone: ours, the system's, and those asked for."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest

from common.errors import EngineError
from common.records import Sampling
from consumer.engine import life, process
from consumer.engine.api import GenerateRequest
from consumer.engine.gpu import EngineLock
from consumer.engine.process import EngineProcess
from consumer.engine.states import EngineState as S
from tests.support.fake_engine import FakeSglang, fake_spec, set_faults
from tests.support.supervised import BUDGET, supervised, until_running

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
GPU_LOST = "RuntimeError: CUDA error: GPU is lost"


class Faulty(FakeSglang):
    """Its dialect fails in a way that nobody foresaw, once ``broken``."""

    broken = False

    async def load(self, http):
        if self.broken:
            raise RuntimeError("a fault of ours")
        return await super().load(http)


async def test_a_fault_of_ours_in_service_is_told_as_an_end_and_ends_what_was_asked(tmp_path):
    engine = Faulty()
    async with supervised(fake_spec(tmp_path, "--token-seconds", "0.05"), engine=engine) as it:
        await it.supervisor.wait_ready()
        ask = asyncio.create_task(it.ask(max_tokens=400))
        await until_running(it, 1)
        engine.broken = True
        await it.supervisor.wait_for(S.FATAL)
        assert (await ask).status is None
        assert it.downs == [(1, "The supervisor itself failed.")]
        with pytest.raises(EngineError, match="a fault of ours"):
            await it.supervisor.wait_ready()


class Asks:
    """A check before READY that asks the engine once."""

    def __init__(self, *, waits=False, **faults):
        self.faults = faults
        self.waits = waits

    async def __call__(self, engine, http, spec, _facts):
        await set_faults(spec, **self.faults)
        request = GenerateRequest(f"{1:032x}", [65], Sampling(max_tokens=5), seed=1)
        reply = await http.post(*engine.generate(request), 30)
        if self.waits:
            await asyncio.Event().wait()
        if not reply.ok:
            raise EngineError("The engine did not answer the test prompts.", why=reply.error)


@pytest.mark.row("B4")
async def test_a_death_in_the_warm_up_is_explained_by_the_engines_last_words(tmp_path):
    check = Asks(crash_on_request=1, crash_words=OUT_OF_MEMORY)
    spec = fake_spec(tmp_path, "--mem-fraction-static", "0.93")
    async with supervised(spec, check=check) as it:
        with pytest.raises(EngineError, match="it ended with code 1") as refusal:
            await it.supervisor.wait_ready()
        assert OUT_OF_MEMORY in refusal.value.why
        assert "--mem-fraction-static" in refusal.value.fix
        assert it.supervisor.lowered == ["--mem-fraction-static 0.93 -> 0.9"]
        assert it.downs == []  # it never served


@pytest.mark.row("B4")
async def test_a_death_in_the_warm_up_that_lasts_is_fatal_at_once(tmp_path):
    check = Asks(crash_on_request=1, crash_words=GPU_LOST)
    async with supervised(fake_spec(tmp_path), check=check) as it:
        with pytest.raises(EngineError, match="it ended with code 1"):
            await it.supervisor.wait_ready()
        assert it.supervisor.incarnation == 1


@pytest.mark.row("B4")
async def test_a_check_that_waits_for_ever_ends_with_its_engine(tmp_path):
    check = Asks(waits=True, crash_on_request=1)
    async with supervised(fake_spec(tmp_path), check=check) as it:
        with pytest.raises(EngineError, match="3 times in a row: it ended with code 1"):
            await it.supervisor.wait_ready()


@pytest.mark.row("B4")
async def test_an_engine_that_lives_and_fails_its_check_is_told_by_what_the_check_says(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(life, "_LAST_SECONDS", 0.1)
    async with supervised(fake_spec(tmp_path), check=Asks(fail_fast=True)) as it:
        with pytest.raises(EngineError, match="in a row: The engine did not answer the test"):
            await it.supervisor.wait_ready()
        assert it.supervisor.incarnation == BUDGET.attempts


@pytest.mark.row("B4")
@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("_bindable", OSError(errno.EMFILE, "Too many open files")),
        ("mark_start", RuntimeError("can't start new thread")),
        ("write_record", RuntimeError("can't start new thread")),
    ],
)
async def test_a_start_that_the_system_refuses_is_tried_again_and_says_the_way_out(
    tmp_path, monkeypatch, step, error
):
    def refuse(*_):
        raise error

    async with supervised(fake_spec(tmp_path)) as it:
        await it.supervisor.wait_ready()
        monkeypatch.setattr(process, step, refuse)
        it.supervisor.condemn("a test")
        await it.supervisor.wait_for(S.FATAL)
        assert it.supervisor.incarnation == BUDGET.attempts
        assert "3 times in a row" in it.supervisor.last_error.what
        assert str(error) in it.supervisor.last_error.why
        assert "GENQ_STATE_DIR" in it.supervisor.last_error.fix
        await it.supervisor.stop()
        assert it.supervisor.state is S.STOPPED


@pytest.mark.row("B4")
async def test_a_state_folder_that_others_may_write_to_by_now_fails_the_starts_alone(tmp_path):
    spec = fake_spec(tmp_path)
    async with supervised(spec) as it:
        await it.supervisor.wait_ready()
        (tmp_path / "engines").chmod(0o777)
        it.supervisor.condemn("a test")
        await it.supervisor.wait_for(S.FATAL)
        assert it.supervisor.incarnation == BUDGET.attempts
        assert "is not private" in it.supervisor.last_error.what
        assert f"chmod 700 {tmp_path / 'engines'}" in it.supervisor.last_error.fix
        await it.supervisor.stop()
        assert it.supervisor.state is S.STOPPED


async def test_a_stop_that_fails_gives_the_place_back_all_the_same(tmp_path, monkeypatch):
    spec = fake_spec(tmp_path)
    ends = EngineProcess.end

    async def end(self, grace_seconds):
        await ends(self, grace_seconds)
        raise OSError("the disk is gone")

    async with supervised(spec) as it:
        await it.supervisor.wait_ready()
        monkeypatch.setattr(EngineProcess, "end", end)
        with pytest.raises(OSError, match="the disk is gone"):
            await it.supervisor.stop()
        assert it.supervisor.state is S.STOPPED
        lock = EngineLock(spec)
        lock.acquire()
        lock.release()


async def test_a_stop_that_is_hurried_in_the_middle_waits_for_no_grace(tmp_path, monkeypatch):
    waits, waiting = EngineProcess._ended, asyncio.Event()

    async def ended(self, seconds):
        waiting.set()
        await waits(self, seconds)

    monkeypatch.setattr(EngineProcess, "_ended", ended)
    budget = replace(BUDGET, stop_seconds=600)
    async with supervised(fake_spec(tmp_path, "--ignore-sigterm"), budget=budget) as it:
        await it.supervisor.wait_ready()
        hurried = asyncio.Event()
        stop = asyncio.create_task(it.supervisor.stop(hurried=hurried))
        await waiting.wait()
        hurried.set()
        await asyncio.wait_for(stop, 30)
        assert it.supervisor.state is S.STOPPED
