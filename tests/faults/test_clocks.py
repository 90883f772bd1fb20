"""Clocks that are wrong or that jump, of real processes: leases and items do not mind."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest
import structlog

from common.errors import Exit
from common.records import Failure, Verdict
from tests.faults.rig import pipeline, quick_outages
from tests.support import servers
from tests.support.clocks import JumpingClock, has_libfaketime, wrong_clock
from tests.support.consumers import consumer, enqueue_run
from tests.support.fleet import Fleet
from tests.support.servers import eventually, eventually_sync

row = pytest.mark.row
LEASES = {"GENQ_LEASE_SECONDS": "3", "GENQ_RENEW_SECONDS": "0.5"}


@pytest.fixture
def jumping_redis(tmp_path):
    """A Valkey, and its host's clock."""
    clock = JumpingClock(tmp_path / "clock")
    with ExitStack() as after:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in clock.env.items():
                patch.setitem(os.environ, name, value)
            server = after.enter_context(servers.redis_server())
        yield server, clock


@row("C11")
async def test_a_clock_of_redis_that_jumps_in_mid_run_costs_no_item(
    jumping_redis, store_settings, tmp_path, monkeypatch
) -> None:
    """A day forward all leases end at once, and keys with a life; two days back none would end.

    The lease of a consumer that died just before is what the reaper then has to set anew.
    """
    quick_outages(monkeypatch)
    server, clock = jumping_redis
    slow = ("--token-seconds", "0.01", "--answer-tokens", "40")
    async with pipeline(server.url, store_settings, tmp_path, *slow) as rig:
        await rig.load(120)
        with structlog.testing.capture_logs() as logs:
            async with rig.world.serving(url=rig.engine.url):
                sink = rig.start_sink()
                await rig.committed(10)
                clock.jump("+1d")
                await rig.committed(40)
                queue = await enqueue_run(rig.audit, rig.manifest, limits=rig.settings.limits())
                assert len(await queue.lease("dies", 1, request="n" * 16)) == 1
                clock.jump("-1d")
                proof = await rig.finished(sink)
    assert proof.committed == 120
    assert any(log["event"] == "the clock of Redis was set back" for log in logs)


@row("C11")
async def test_a_clock_of_redis_set_back_by_less_than_a_day_keeps_nothing_waiting(
    jumping_redis, store_settings, tmp_path, monkeypatch
) -> None:
    """A dead consumer's lease and a retry are due as soon as if nothing had happened."""
    quick_outages(monkeypatch)
    server, clock = jumping_redis
    async with pipeline(server.url, store_settings, tmp_path) as rig:
        await rig.load(20)
        clock.jump("+50m")
        queue = await enqueue_run(rig.audit, rig.manifest, limits=rig.settings.limits())
        _, tried = await queue.lease("dies", 2, request="n" * 16)
        await queue.fail(
            "dies", [Failure(tried.item, tried.token, Verdict.EMPTY, "why", charged=True)]
        )
        clock.jump("+0")
        async with rig.world.serving(url=rig.engine.url):
            proof = await rig.finished(rig.start_sink())
    assert proof.committed == 20


@row("F11")
@pytest.mark.timeout(240)
async def test_two_hosts_whose_clocks_differ_share_a_run_and_one_is_killed(world) -> None:
    """Ten minutes ahead and ten behind, since S3 itself refuses more than fifteen.

    Without libfaketime it is Python's clock that is wrong, by a day.
    """
    await world.load(120)
    flags = ("--model", world.model, "--max-running", "4", "--", "--token-seconds", "0.02")
    with ExitStack() as after:
        ahead, behind = (
            after.enter_context(
                consumer(
                    world.env,
                    world.folder / f"{sign}.log",
                    *flags,
                    program=() if has_libfaketime() else skewed(86_400 * int(f"{sign}1")),
                    **(wrong_clock(f"{sign}10m") if has_libfaketime() else {}),
                    **LEASES,
                )
            )
            for sign in "+-"
        )
        await both_ready(world)
        await world.some_generated(30)
        assert (await world.counts()).wasted_tokens == 0
        ahead.signal(signal.SIGKILL)
        ahead.wait()
        await world.generated(120)
        assert behind.process.poll() is None
    results = world.results()
    assert sorted(r["k"] for r in results) == list(range(120))
    assert {r["attempt"] for r in results} == {1}


async def both_ready(world) -> None:
    """Wait for two consumers that work: each has imported a tokenizer before, which takes long."""

    async def working() -> bool:
        return sum(one.state == "busy" for one in await world.runs.workers()) == 2

    await eventually(working, 120)


def skewed(seconds: int) -> tuple[str, ...]:
    """The stand-in's consumer with Python's wall clock set wrong."""
    code = (
        f"import runpy, time; real = time.time; time.time = lambda: real() + {seconds};"
        " runpy.run_module('tests.support.fake_consumer', run_name='__main__')"
    )
    return ("-c", code)


@row("F11")
@row("E8")
@pytest.mark.faults
async def test_a_consumer_a_day_off_says_so_leases_nothing_and_others_go_on(world) -> None:
    await world.load(20)
    with world.consume(log="off.log", **wrong_clock("+1d")) as off:
        off.wait_for("run left alone", 60)
        assert off.said("RequestTimeTooSkewed")
        assert off.said("Set this machine's clock.")
        assert (await world.counts()).since_lease is None
        with world.consume("--burst", log="right.log") as right:
            assert right.wait(60) == Exit.DONE
    assert sorted(r["k"] for r in world.results()) == list(range(20))


@row("E8")
@pytest.mark.faults
@pytest.mark.parametrize("offset", ["+1d", "-1d"])
@pytest.mark.parametrize("service", ["sink", "producer"])
def test_a_host_a_day_off_is_told_to_set_its_clock(service_env, tmp_path, service, offset) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "hello"}\n')
    fleet = Fleet({**service_env, **wrong_clock(offset)}, tmp_path)
    if service == "producer":
        done = fleet.producer("load", str(rows), "--run", "one", "--model", "tiny")
        code, said = done.returncode, done.stderr
    else:
        fleet.start("sink", "gen-sink", "--burst")
        code = fleet.members["sink"].wait(60)
        said = fleet.log("sink").read_text()
    assert code == Exit.STORE, said
    what, why, fix = said.splitlines()[-3:]
    assert what.startswith("Error: Cannot ")
    assert "RequestTimeTooSkewed" in why
    assert fix == "  Set this machine's clock."


@row("C11")
@row("F11")
@pytest.mark.faults
def test_a_producer_ten_minutes_off_loads_what_others_answer(service_env, tmp_path) -> None:
    """Its clock is in run.json and in what RQ shows, and decides nothing."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "hello"}\n' * 3)
    fleet = Fleet({**service_env, **wrong_clock("+10m")}, tmp_path)
    loaded = fleet.producer("load", str(rows), "--run", "one", "--model", "tiny")
    assert loaded.returncode == 0, loaded.stderr
    right = Fleet(service_env, tmp_path)
    again = right.producer("load", str(rows), "--run", "one", "--model", "tiny")
    assert again.returncode == 0, again.stderr
    eventually_sync(lambda: right.counts("one").queued == 3)
