"""gen-sink as a process, against a real Valkey and a real S3 server."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from common import codec
from common.objectstore import RunPaths
from common.parts import SUFFIXES
from tests.support.failpoints import points_of
from tests.support.servers import eventually as soon
from tests.support.sinks import proven, sink_lab

FORMATS = pytest.mark.parametrize("suffix", SUFFIXES)
ROWS = 30
FLAGS = ("--rows", "8", "--seconds", "1", "--burst")


async def eventually(condition, seconds=60.0):
    return await soon(condition, seconds)  # sinks poll, and the machine may be busy


@pytest.fixture
async def lab(settings, service_env):
    async with sink_lab(settings, service_env) as made:
        yield made


@FORMATS
async def test_a_run_is_written_finished_and_proven(lab, suffix):
    job = await lab.load("plain", rows=ROWS, samples=2)
    await job.answer_all()
    sink = lab.start(*FLAGS, "--format", suffix)
    assert await sink.wait() == 0, sink.log()
    await proven(job)
    assert f"{job.store.url}/plain/data/" in sink.output()
    assert "load_dataset" in sink.output()


ALWAYS = {"sink.part.put": "parquet", "sink.commit.after": "jsonl.zst"}


def in_both_formats(failpoints):
    """All pairs; what `make test` leaves to `make faults` is marked."""
    return [
        pytest.param(name, suffix, marks=[] if ALWAYS.get(name) == suffix else pytest.mark.faults)
        for name in failpoints
        for suffix in SUFFIXES
    ]


@pytest.mark.row("E1")
@pytest.mark.parametrize(
    ("failpoint", "suffix"),
    in_both_formats(points_of("test_a_sink_killed_at_any_step_loses_and_repeats_nothing")),
)
async def test_a_sink_killed_at_any_step_loses_and_repeats_nothing(lab, failpoint, suffix):
    job = await lab.load("killed", rows=ROWS)
    await job.bury(await job.lease(1))
    await job.answer_all()
    flags = (*FLAGS, "--format", suffix)
    sink = lab.start(*flags, failpoint=failpoint)
    assert await sink.wait() == -signal.SIGKILL, sink.log()
    sink = lab.start(*flags, failpoint=failpoint)  # at the same step of the next part, mostly
    assert await sink.wait() in (-signal.SIGKILL, 8), sink.log()
    sink = lab.start(*flags)
    assert await sink.wait() == 8, sink.log()  # one dead letter
    await proven(job, dead=1)


async def killed_before_its_commit(lab, name):
    """Return a job with two results in the stream, and four that are in a part, too."""
    job = await lab.load(name, rows=ROWS)
    await job.answer(await job.lease(6))
    sink = lab.start("--rows", "4", failpoint="sink.commit.before")
    assert await sink.wait() == -signal.SIGKILL, sink.log()
    return job


@pytest.mark.row("E1")
async def test_a_sink_killed_before_its_commit_ends_a_run_that_was_cancelled_meanwhile(lab):
    job = await killed_before_its_commit(lab, "cancelled")
    await job.runs.cancel(job.run)
    sink = lab.start("--rows", "8", "--seconds", "600", "--burst")
    assert await sink.wait() == 0, sink.log()
    counts = await job.counts()
    assert (counts.state, counts.committed, counts.generated) == ("cancelled", 6, 0)


@pytest.mark.row("E1")
@pytest.mark.parametrize("state", ["", "another"])
async def test_a_sink_killed_before_its_commit_is_not_taken_for_a_redis_that_went_back(lab, state):
    job = await killed_before_its_commit(lab, "started")
    sink = lab.start("--rows", "8", "--seconds", "1", state=state)
    await eventually(lambda: committed(job, 6))
    assert "went_back" not in sink.log()


@pytest.mark.row("E1")
@pytest.mark.faults
@pytest.mark.parametrize(
    "failpoint", points_of("test_a_sink_killed_while_reopening_a_run_reopens_it_again")
)
async def test_a_sink_killed_while_reopening_a_run_reopens_it_again(lab, failpoint):
    job = await lab.load("reopened", rows=3)
    await job.bury(await job.lease(1))
    await job.answer_all()
    assert await lab.start(*FLAGS).wait() == 8
    await requeue_as_rq_does(lab, job)
    sink = lab.start("--seconds", "1", failpoint=failpoint)
    assert await sink.wait() == -signal.SIGKILL, sink.log()
    assert await asyncio.to_thread(job.store.stat, RunPaths(job.run).success) is None
    lab.start("--seconds", "1")
    await eventually(lambda: is_open(job))
    await eventually(lambda: answered(job))
    await eventually(lambda: finished(job))
    await proven(job)


async def is_open(job) -> bool:
    return (await job.counts()).state == "open"


async def answered(job) -> bool:
    leased = await job.lease(10)
    await job.answer(leased)
    return bool(leased)


async def finished(job) -> bool:
    return await asyncio.to_thread(job.store.stat, RunPaths(job.run).success) is not None


async def requeue_as_rq_does(lab, job) -> None:
    rq = [
        "-m",
        "rq.cli",
        "requeue",
        "--url",
        lab.env["GENQ_REDIS_URL"],
        "--queue",
        job.run,
        "--all",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *rq, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 0, errors


@pytest.mark.row("E2")
async def test_two_sinks_share_a_run(lab):
    job = await lab.load("shared", rows=200)
    sinks = [lab.start(*FLAGS, state=state) for state in ("-a", "-b")]
    await job.answer_all()
    for sink in sinks:
        assert await sink.wait() == 0, sink.log()
    await proven(job)


@pytest.mark.row("E2")
async def test_a_zombie_sink_cannot_repeat_what_another_wrote(lab):
    job = await lab.load("zombie", rows=40)
    zombie = lab.start("--rows", "1000", "--seconds", "600")
    await job.answer(await job.lease(20))
    await eventually(lambda: read_by_a_sink(job, 20))
    zombie.signal(signal.SIGSTOP)  # with all twenty in hand
    await job.answer_all()
    sink = lab.start(*FLAGS, state="-b")  # takes the zombie's over after a while
    assert await sink.wait() == 0, sink.log()
    await proven(job)
    zombie.signal(signal.SIGCONT)
    zombie.signal(signal.SIGTERM)  # at which it stores what it has in hand
    assert await zombie.wait() == 143
    assert "sink.committed" not in zombie.log()
    await proven(job)


async def read_by_a_sink(job, count: int) -> bool:
    pending = await job.redis.xpending(f"genq:stream:{job.run}", "sink")
    return pending["pending"] >= count


@pytest.mark.row("E12")
async def test_results_that_cannot_be_stored_are_dead_lettered_and_the_rest_goes_on(lab):
    job = await lab.load("poison", rows=10)
    poison = {
        0: b"not zstd",
        1: codec.compress(b'{"k": 1}'),
        2: codec.compress(b" " * (50 << 20)),
    }
    leased = await job.lease(10)
    await job.answer(leased[:5], payloads=poison)
    await job.answer(leased[5:6], output_ids=[2**31])
    await job.answer(leased[6:])
    sink = lab.start(*FLAGS)
    assert await sink.wait() == 8, sink.log()
    await proven(job, dead=4)
    lines = (await asyncio.to_thread(job.store.get, RunPaths(job.run).failed)).splitlines()
    letters = [codec.loads(line) for line in lines]
    assert [one["k"] for one in letters] == [0, 1, 2, 5]
    assert {one["verdict"] for one in letters} == {"malformed"}
    assert letters[3]["row_id"] == "row 5"
    assert letters[3]["messages"] == [{"role": "user", "content": "Say 5."}]


async def test_sigterm_commits_what_is_in_hand(lab):
    job = await lab.load("stopped", rows=10)
    sink = lab.start("--rows", "1000", "--seconds", "600")
    await job.answer(await job.lease(4))
    await eventually(lambda: read_by_a_sink(job, 4))
    sink.signal(signal.SIGTERM)
    assert await sink.wait() == 143, sink.log()
    assert (await job.counts()).committed == 4, sink.log()


async def test_a_run_that_was_lost_in_redis_goes_on_when_it_is_loaded_again(lab):
    job = await lab.load("epoch", rows=20)
    lab.start("--rows", "5", "--seconds", "1")
    await job.answer(await job.lease(10))
    await eventually(lambda: committed(job, 10))
    await job.redis.flushall()
    again = await lab.load("epoch", rows=20)  # a load that restores nothing
    await again.answer_all()
    await eventually(lambda: finished(again))
    await proven(again)


async def committed(job, count: int) -> bool:
    return (await job.counts()).committed == count
