"""The supervisor over the stand-in: every way to come up, to die, and to be given up."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import psutil
import pytest

from common.errors import ConflictError, EngineError
from common.tokens import load_tokens
from consumer.engine import hf_renderer
from consumer.engine.process import log_path, port_free
from consumer.engine.states import EngineState as S
from consumer.engine.supervisor import Supervisor, UnfitError
from tests.support.fake_engine import FakeSglang, fake_spec, fake_state, running_fake, set_faults
from tests.support.supervised import BUDGET, supervised, until_running


async def test_it_starts_answers_and_stops_in_order(tmp_path):
    spec = fake_spec(tmp_path, max_running=4)
    async with supervised(spec) as it:
        facts = await it.supervisor.wait_ready()
        assert (facts.engine, facts.max_running, facts.vocab_size) == ("sglang", 4, 320)
        assert facts.context_tokens == 4096
        assert it.supervisor.engine.read((await it.ask()).body).rid == f"{1:032x}"
        await it.supervisor.stop()
        assert [state for state, _ in it.states] == [
            *(S.STARTING, S.WARMING, S.READY, S.DRAINING, S.STOPPED)
        ]
        assert it.downs == []
    assert await port_free(spec.host, spec.port, seconds=0)
    assert [path.suffix for path in sorted((tmp_path / "engines").iterdir())] == [".lock", ".log"]


class Preparing(FakeSglang):
    """Not ready before :meth:`prepare` has ended, well or not."""

    def __init__(self, fault=None):
        super().__init__()
        self.fault = fault
        self.prepared = asyncio.Event()

    async def prepare(self, spec):
        try:
            if self.fault:
                raise self.fault
            await super().prepare(spec)
        finally:
            self.prepared.set()

    async def ready(self, http):
        return self.prepared.is_set() and await super().ready(http)


async def test_the_tokenizer_is_loaded_while_the_server_starts_and_once(tmp_path, monkeypatch):
    loads = []
    monkeypatch.setattr(
        hf_renderer,
        "load_tokens",
        lambda *args, **options: loads.append(args) or load_tokens(*args, **options),
    )
    async with supervised(fake_spec(tmp_path), engine=Preparing()) as it:
        await it.supervisor.wait_ready()
        assert len(loads) == 1
        for _ in range(2):
            renderer = it.supervisor.engine.renderer(it.supervisor.spec, it.supervisor.http)
            assert await renderer.encode("ab")
        assert len(loads) == 1


async def test_a_tokenizer_that_does_not_load_is_left_to_what_needs_it(tmp_path):
    engine = Preparing(EngineError("The model has no tokenizer."))
    async with supervised(fake_spec(tmp_path), engine=engine) as it:
        await it.supervisor.wait_ready()
        assert (await it.ask()).ok


async def test_a_stop_lets_the_engine_finish_what_it_has(tmp_path):
    async with supervised(fake_spec(tmp_path, "--token-seconds", "0.02")) as it:
        await it.supervisor.wait_ready()
        process = psutil.Process(it.session).children()[0]
        answer = asyncio.create_task(it.ask())
        await until_running(it, 1)
        process.terminate()
        assert (await answer).ok


@pytest.mark.row("B1")
async def test_a_crash_with_requests_in_flight_ends_them_and_it_comes_back(tmp_path):
    async with supervised(fake_spec(tmp_path, "--token-seconds", "0.05")) as it:
        await it.supervisor.wait_ready()
        asks = [asyncio.create_task(it.ask(n)) for n in range(4)]
        await until_running(it, 4)
        await set_faults(it.supervisor.spec, crash_on_request=1)
        replies = await asyncio.gather(*asks, it.ask(9))
        assert [reply.status for reply in replies] == [None] * 5
        await it.supervisor.wait_for(S.BACKOFF, S.STARTING)
        await it.supervisor.wait_ready()
        assert it.supervisor.incarnation == 2
        assert [n for n, _ in it.downs] == [1]
        assert "ended with code 1" in it.downs[0][1]
        assert (await it.ask()).ok


@pytest.mark.row("B2")
async def test_a_hang_behind_a_good_health_check_is_found(tmp_path):
    async with supervised(fake_spec(tmp_path)) as it:
        await it.supervisor.wait_ready()
        await set_faults(it.supervisor.spec, hang=True)
        assert (await it.ask()).status is None
        assert "stuck: no token and no answer" in it.downs[0][1]
        await it.supervisor.wait_for(S.STARTING)
        await it.supervisor.wait_ready()
        assert (await it.ask()).ok


@pytest.mark.row("B2")
async def test_a_stopped_process_is_found(tmp_path):
    async with supervised(fake_spec(tmp_path, "--token-seconds", "0.05")) as it:
        await it.supervisor.wait_ready()
        ask = asyncio.create_task(it.ask())
        await until_running(it, 1)
        os.kill(psutil.Process(it.session).children()[0].pid, signal.SIGSTOP)
        assert (await ask).status is None
        assert it.downs


@pytest.mark.row("B9")
async def test_requests_that_the_engine_forgot_are_found(tmp_path):
    async with supervised(fake_spec(tmp_path)) as it:
        await it.supervisor.wait_ready()
        await set_faults(it.supervisor.spec, forget_requests=True)
        assert (await it.ask()).status is None
        assert "idle" in it.downs[0][1] or "no token" in it.downs[0][1]


@pytest.mark.row("B3")
async def test_an_unhealthy_but_working_engine_is_left_alone(tmp_path):
    async with supervised(fake_spec(tmp_path, "--token-seconds", "0.05")) as it:
        await it.supervisor.wait_ready()
        await set_faults(it.supervisor.spec, health_status=503)
        reply = await it.ask(max_tokens=400)  # 1 to 3 s of tokens; the stall time is 1 s
        assert reply.ok
        assert it.downs == []
        assert it.supervisor.state is S.READY


async def test_a_condemned_engine_is_replaced(tmp_path):
    async with supervised(fake_spec(tmp_path)) as it:
        await it.supervisor.wait_ready()
        it.supervisor.condemn("every request fails")
        await it.supervisor.wait_for(S.BACKOFF, S.STARTING)
        await it.supervisor.wait_ready()
        assert it.downs == [(1, "every request fails")]


@pytest.mark.row("B4")
async def test_failed_starts_in_a_row_are_fatal_with_the_last_words(tmp_path):
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    async with supervised(fake_spec(tmp_path, "--refuse", words)) as it:
        with pytest.raises(EngineError) as refusal:
            await it.supervisor.wait_ready()
        assert it.supervisor.state is S.FATAL
        assert it.supervisor.incarnation == BUDGET.attempts
        assert "3 times in a row" in refusal.value.what
        assert words in refusal.value.why
        assert "--mem-fraction-static" in refusal.value.fix
        assert it.downs == []  # it never served


@pytest.mark.row("B4")
async def test_a_failure_that_lasts_is_fatal_at_once(tmp_path):
    async with supervised(fake_spec(tmp_path, "--no-such-flag")) as it:
        with pytest.raises(EngineError, match="code 2"):
            await it.supervisor.wait_ready()
        assert it.supervisor.incarnation == 1
        assert "--no-such-flag" in it.supervisor.last_error.why


@pytest.mark.row("B4")
@pytest.mark.parametrize("words", ["No module named 'sglang'", "CUDA out of memory"])
async def test_the_last_words_of_an_earlier_engine_explain_no_later_death(tmp_path, words):
    """The log outlives engines, and consumers: what one of last week said is in it, too."""
    spec = fake_spec(tmp_path, "--refuse", "bye")
    log_path(spec).parent.mkdir(mode=0o700)
    log_path(spec).write_text(f"Error: {words}\n")
    async with supervised(spec) as it:
        with pytest.raises(EngineError) as refusal:
            await it.supervisor.wait_ready()
        assert it.supervisor.incarnation == BUDGET.attempts  # it was tried again
        assert refusal.value.why == "bye"
        assert refusal.value.fix == f"Read its log: {log_path(spec)}"
        assert it.supervisor.lowered == []


async def test_a_start_that_failed_once_is_tried_again(tmp_path):
    marker = tmp_path / "refuse"
    marker.touch()
    spec = fake_spec(tmp_path, "--refuse", "some trouble", "--refuse-file", str(marker))
    async with supervised(spec, budget=replace(BUDGET, attempts=50)) as it:
        await it.supervisor.wait_for(S.BACKOFF)
        marker.unlink()
        await it.supervisor.wait_ready()
        assert it.supervisor.incarnation > 1


@pytest.mark.row("B4")
async def test_a_start_beyond_its_budget_is_ended(tmp_path):
    budget = replace(BUDGET, start_seconds=1.0, attempts=1)
    async with supervised(fake_spec(tmp_path, "--start-seconds", "60"), budget=budget) as it:
        with pytest.raises(EngineError, match="not ready within 1 s"):
            await it.supervisor.wait_ready()


@pytest.mark.row("B4")
async def test_a_slow_start_within_its_budget_is_waited_for(tmp_path):
    async with supervised(fake_spec(tmp_path, "--start-seconds", "1.5")) as it:
        await it.supervisor.wait_ready()
        assert it.supervisor.incarnation == 1


@pytest.mark.row("B4")
async def test_children_that_ignore_sigterm_and_keep_the_port_are_killed(tmp_path):
    spec = fake_spec(tmp_path, "--stubborn-child")
    async with supervised(spec) as it:
        await it.supervisor.wait_ready()
        tree = psutil.Process(it.session).children(recursive=True)
        assert len(tree) == 2
        it.supervisor.condemn("a test")
        await it.supervisor.wait_for(S.STARTING)
        assert not any(process.is_running() for process in tree)
        await it.supervisor.wait_ready()
        await it.supervisor.stop()
    assert await port_free(spec.host, spec.port, seconds=0)


async def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    budget = replace(BUDGET, stop_seconds=0.3)
    async with supervised(fake_spec(tmp_path, "--ignore-sigterm"), budget=budget) as it:
        await it.supervisor.wait_ready()
        await it.supervisor.stop()
        assert it.supervisor.state is S.STOPPED


@pytest.mark.row("A5")
async def test_a_second_consumer_for_the_place_is_refused_and_the_first_named(tmp_path):
    spec = fake_spec(tmp_path)
    async with supervised(spec) as it:
        await it.supervisor.wait_ready()
        with pytest.raises(ConflictError, match=f"process {os.getpid()} on "):
            await Supervisor(FakeSglang(), spec).start()


@pytest.mark.row("B4")
async def test_a_taken_port_is_told(tmp_path):
    spec = fake_spec(tmp_path)
    listener = await asyncio.start_server(lambda r, w: w.close(), spec.host, spec.port)
    async with listener, supervised(spec, budget=replace(BUDGET, attempts=1)) as it:
        with pytest.raises(EngineError, match=f"Port {spec.port}"):
            await it.supervisor.wait_ready()


async def test_an_unfit_engine_never_serves(tmp_path):
    async def refuse(*_):
        raise UnfitError("it speaks in tongues")

    async with supervised(fake_spec(tmp_path), check=refuse) as it:
        with pytest.raises(EngineError, match="tongues"):
            await it.supervisor.wait_ready()
        assert it.supervisor.state is S.FATAL
        assert S.READY not in [state for state, _ in it.states]


async def test_stopping_during_a_start_leaves_nothing(tmp_path):
    spec = fake_spec(tmp_path, "--start-seconds", "60")
    async with supervised(spec) as it:
        await it.supervisor.wait_for(S.STARTING)
        await it.supervisor.stop(now=True)
        with pytest.raises(EngineError, match="stopped"):
            await it.supervisor.wait_ready()
    assert await port_free(spec.host, spec.port, seconds=0)


async def test_the_key_is_neither_in_the_log_nor_in_any_command_line(tmp_path):
    spec = fake_spec(tmp_path)
    async with supervised(replace(spec, flags=("--faults", "{}"))) as it:
        await it.supervisor.wait_ready()
        lines = [p.cmdline() for p in psutil.Process(it.session).children(recursive=True)]
        assert not any(spec.api_key in word for line in lines for word in line)
        assert (await it.ask()).ok  # with the key it answers
    assert spec.api_key not in (tmp_path / "engines" / f"{spec.name}.log").read_text()


async def test_a_server_of_somebody_else_is_used_and_left_running(tmp_path):
    async with running_fake(tmp_path) as spec:
        async with supervised(spec) as it:
            await it.supervisor.wait_ready()
            assert (await it.ask()).ok
            await it.supervisor.stop()
        assert (await fake_state(spec))["finished"] == 1
