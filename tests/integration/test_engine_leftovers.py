"""A consumer dies by SIGKILL: what becomes of its engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import replace

import psutil
import pytest
import structlog

from consumer.engine import leftovers
from consumer.engine.leftovers import end_leftovers
from consumer.engine.process import port_free, session_members
from consumer.engine.records import EngineRecord, record_path, records, write_record
from consumer.engine.supervisor import Supervisor
from tests.support.fake_engine import ROOT, FakeSglang, fake_spec

GONE = 2**31 - 1  # no process has this number
CONSUMER = """
import asyncio, json, pathlib, sys
from consumer.engine.api import EngineSpec
from consumer.engine.supervisor import Supervisor
from tests.support.fake_engine import FakeSglang

async def main():
    values = json.loads(sys.argv[1])
    values["state_dir"] = pathlib.Path(values["state_dir"])
    values["flags"] = tuple(values["flags"])
    supervisor = Supervisor(FakeSglang(), EngineSpec(**values))
    await supervisor.start()
    await supervisor.wait_ready()
    print("READY", supervisor._life._spawn.result().pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def start_consumer(spec):
    """A process of its own with a supervised engine; returns it and the engine's session."""
    names = ("model", "gpu", "url", "port", "api_key", "flags")
    values = {name: getattr(spec, name) for name in names} | {"state_dir": str(spec.state_dir)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CONSUMER,
        json.dumps(values),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    async with asyncio.timeout(60):
        while True:
            line = await process.stdout.readline()
            assert line, "the consumer ended"
            if line.startswith(b"READY"):
                return process, int(line.split()[1])


async def gone(tree, seconds=20.0):
    deadline = time.monotonic() + seconds
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in tree):
        assert time.monotonic() < deadline, [p for p in tree if p.is_running()]
        await asyncio.sleep(0.02)  # poll: processes of nobody here


@pytest.mark.row("B10")
async def test_the_engine_and_all_its_children_die_with_a_killed_consumer(tmp_path):
    spec = fake_spec(tmp_path, "--stubborn-child")
    process, session = await start_consumer(spec)
    tree = psutil.Process(session).children(recursive=True)
    assert len(tree) == 2
    process.kill()
    await process.communicate()
    await gone(tree)
    assert await port_free(spec.host, spec.port, seconds=5)


@pytest.mark.row("B10")
async def test_an_engine_that_outlived_consumer_and_guard_is_ended_by_the_next_start(tmp_path):
    spec = fake_spec(tmp_path)
    process, session = await start_consumer(spec)
    guard = psutil.Process(session)
    (engine,) = guard.children()
    guard.suspend()  # it cannot do its last work
    process.kill()
    await process.communicate()
    os.kill(session, signal.SIGKILL)
    await gone([guard])
    assert engine.is_running()
    assert session_members(session) == [engine.pid]

    supervisor = Supervisor(FakeSglang(), spec)
    await supervisor.start()
    await supervisor.wait_ready()
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
    await supervisor.stop(now=True)


@pytest.mark.row("B10")
async def test_a_leftover_at_another_port_is_found_too(tmp_path):
    spec = fake_spec(tmp_path)
    process, session = await start_consumer(spec)
    engine = psutil.Process(session).children()[0]
    os.kill(session, signal.SIGSTOP)
    process.kill()
    await process.communicate()
    assert await asyncio.to_thread(end_leftovers, tmp_path) == [session]
    await gone([engine])
    assert records(tmp_path) == {}


async def test_the_engine_of_a_living_consumer_is_left_alone(tmp_path):
    spec = fake_spec(tmp_path)
    supervisor = Supervisor(FakeSglang(), spec)
    await supervisor.start()
    await supervisor.wait_ready()
    assert await asyncio.to_thread(end_leftovers, tmp_path) == []
    assert record_path(spec).exists()
    await supervisor.stop(now=True)


@pytest.fixture
def leftover(tmp_path):
    """The record of an engine that ended together with its consumer."""
    spec = fake_spec(tmp_path)
    record = EngineRecord.of(os.getpid(), spec)
    gone_record = replace(record, session=GONE, owner=GONE, owner_started=1.0)
    record_path(spec).parent.mkdir(parents=True)
    write_record(gone_record, spec)
    return spec, gone_record


@pytest.mark.row("B10")
def test_a_record_that_a_living_consumer_writes_meanwhile_stays(tmp_path, monkeypatch, leftover):
    """To end a leftover takes a while, and the place is free for another consumer's engine."""
    spec, _ = leftover
    mine = EngineRecord.of(os.getpid(), spec)
    monkeypatch.setattr(leftovers, "kill_session", lambda _: write_record(mine, spec) or ())
    assert end_leftovers(tmp_path) == [GONE]
    assert records(tmp_path) == {record_path(spec): mine}


@pytest.mark.row("B10")
def test_a_leftover_that_outlives_its_kill_stays_on_record_and_is_said(
    tmp_path, monkeypatch, leftover
):
    spec, record = leftover
    monkeypatch.setattr(leftovers, "kill_session", lambda _: [4711])
    with structlog.testing.capture_logs() as logs:
        assert end_leftovers(tmp_path) == []
    assert [(line["event"], line["left"]) for line in logs] == [("engine.leftover_lives", [4711])]
    assert records(tmp_path) == {record_path(spec): record}
    monkeypatch.setattr(leftovers, "kill_session", lambda _: ())
    assert end_leftovers(tmp_path) == [GONE]  # the next start got it
    assert records(tmp_path) == {}


@pytest.mark.parametrize("change", ["number", "host", "boot"])
async def test_a_number_that_belongs_to_somebody_else_by_now_is_left_alone(tmp_path, change):
    stranger = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    try:
        spec = fake_spec(tmp_path)
        record = replace(EngineRecord.of(stranger.pid, spec), owner=stranger.pid, owner_started=1.0)
        changes = {"number": {"started": 1.0}, "host": {"host": "other"}, "boot": {"boot": "old"}}
        path = record_path(spec)
        path.parent.mkdir(parents=True)
        path.write_bytes(json.dumps(as_dict(replace(record, **changes[change]))).encode())
        assert await asyncio.to_thread(end_leftovers, tmp_path) == []
        assert stranger.returncode is None
        assert path.exists() == (change == "host")
    finally:
        stranger.kill()
        await stranger.wait()


def as_dict(record):
    return {name: getattr(record, name) for name in EngineRecord.__dataclass_fields__}


def test_a_broken_record_is_no_record(tmp_path):
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "gpu0.json").write_text("{")
    assert records(tmp_path) == {}
    assert end_leftovers(tmp_path) == []
