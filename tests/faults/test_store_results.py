"""Results that are large, and parts in storage that are damaged or not yet seen by all."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

from common import codec
from common.errors import DeadLettersError
from common.objectstore import RunPaths
from common.parts import SUFFIXES, codec_for
from common.prove import prove
from common.s3 import open_store
from consumer.sink.decode import RESULT_LIMIT_BYTES
from tests.support.completions import completion, payload
from tests.support.s3_exchange import CREATE, HEAD, LIST
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab, proven

MIB = 1 << 20
LONG = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
async def lab(settings):
    job = await load_job(settings, "results", rows=12)
    async with local_lab(settings, job) as made:
        yield made


@pytest.mark.row("E12")
async def test_a_result_of_fifty_megabytes_is_dead_lettered_alone(lab):
    job = lab.job
    giant = payload(completion(3, content=os.urandom(25 * MIB).hex()))
    leased = await job.lease(12)
    await job.answer(leased, payloads={3: giant})
    with pytest.raises(DeadLettersError):
        await lab.finish()
    await proven(job, dead=1)
    (letter,) = job.store.get(RunPaths(job.run).failed).splitlines()
    assert codec.loads(letter)["k"] == 3
    assert str(RESULT_LIMIT_BYTES) in codec.loads(letter)["text"]


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had; 0 when it is gone."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0
    return 0


@pytest.mark.row("E7")
@pytest.mark.row("E12")
@pytest.mark.parametrize(
    ("results", "part_bytes", "suffix"),
    [
        (120, 16 * MIB, "jsonl.zst"),
        pytest.param(3000, 64 * MIB, "jsonl.zst", marks=LONG),
        pytest.param(3000, 64 * MIB, "parquet", marks=LONG),
    ],
)
async def test_parts_roll_by_bytes_and_memory_is_bounded(processes, suffix, results, part_bytes):
    """Results of a megabyte each; what comes out is what went in."""
    job = await processes.load("large", rows=results)
    text = "All work and no play makes Jack a dull boy. " * (MIB // 44)
    sink = processes.start(
        "--format", suffix, "--rows", "1000000", "--bytes", str(part_bytes), "--seconds", "600",
        "--burst",
    )  # fmt: skip
    await job.answer_all(content=text)
    ended = asyncio.create_task(sink.wait(500))
    peak = 0
    while not ended.done():
        await asyncio.wait([ended], timeout=0.2)
        peak = max(peak, peak_bytes(sink.pid))
    assert await ended == 0, sink.log()
    proof = await proven(job)
    per_part = part_bytes // MIB
    assert results // (per_part + 2) <= proof.parts <= results // (per_part - 2) + 1
    assert peak < 350 * MIB + 8 * part_bytes
    for number in (0, proof.parts - 1):
        data = job.store.get(RunPaths(job.run).part(number, suffix))
        assert {one.content for one in codec_for(suffix).decode(data)} == {text}


DAMAGES = {
    "a flipped byte": lambda data: (
        data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 1]) + data[len(data) // 3 + 1 :]
    ),
    "its tail cut off": lambda data: data[:-100],
    "emptied": lambda data: b"",
}


@pytest.mark.row("E11")
@pytest.mark.parametrize(
    ("damage", "suffix"),
    [
        ("a flipped byte", "parquet"),
        ("its tail cut off", "jsonl.zst"),
        pytest.param("a flipped byte", "jsonl.zst", marks=pytest.mark.faults),
        pytest.param("its tail cut off", "parquet", marks=pytest.mark.faults),
        *(pytest.param("emptied", suffix, marks=pytest.mark.faults) for suffix in SUFFIXES),
    ],
)
async def test_verify_finds_a_damaged_part(lab, producer, damage, suffix):
    job = lab.job
    await job.answer_all()
    await lab.finish(suffix=suffix)
    assert prove(job.store, job.run).problems == []
    key = RunPaths(job.run).part(1, suffix)
    job.store.put(key, DAMAGES[damage](job.store.get(key)))
    said = await asyncio.to_thread(producer, "verify", job.run, code=9)
    assert key in said.out + said.err


@pytest.mark.row("E11")
async def test_a_sink_does_not_build_on_a_damaged_part(lab, settings):
    """Its index is gone, too: what the part held is not known, and nothing is written after it."""
    job = lab.job
    await job.answer(await job.lease(5))
    serving = lab.start(lab.finish())
    paths = RunPaths(job.run)
    key = paths.part(0, "jsonl.zst")
    await eventually(lambda: job.store.stat(paths.index(0)), 60)
    lab.stop.set()
    await serving
    lab.stop.clear()
    job.store.put(key, job.store.get(key)[:-100])
    job.store.delete(paths.index(0))
    await job.answer_all()
    with pytest.raises(Exception, match=key) as caught:
        await lab.finish(folder=settings.state_dir / "new")
    assert "verify" in caught.value.fix
    assert [one.key for one in job.store.list(paths.data_prefix)] == [key]


@pytest.mark.row("E10")
async def test_a_store_that_shows_writes_late_makes_nothing_twice(
    lab, settings, store_proxy, monkeypatch
):
    """A sink that starts sees no part of another's: its PUT finds that they are there."""
    monkeypatch.setattr("consumer.sink.outage.LONGEST_SECONDS", 0.2)
    job = lab.job
    await job.answer_all()
    await lab.finish()
    parts = prove(job.store, job.run).parts
    await job.redis.flushall()
    late = open_store(settings.model_copy(update={"s3_endpoint": store_proxy.url}))
    again = await load_job(settings, "results", rows=12, store=late)  # which restores nothing
    async with local_lab(settings, again) as second:
        await again.answer_all()
        store_proxy.fail("stale", on={HEAD}, path="/data/")
        store_proxy.fail("stale", on={LIST})
        finishing = second.start(second.finish(folder=settings.state_dir / "new"))
        await eventually(lambda: store_proxy.count(CREATE, path="/data/") > 2, 60)
        assert (await again.counts()).committed == 0
        store_proxy.mend()
        await finishing
        assert (await proven(again)).parts == parts
