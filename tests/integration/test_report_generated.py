"""Shares that were planted in the data set, through the real consumer, queue and sink."""

from __future__ import annotations

import asyncio
import json

import pytest

from common.errors import DeadLettersError, Exit
from common.ids import RunName
from common.prove import prove
from consumer.sink.batcher import Bounds
from tests.support import forge
from tests.support.consumers import world_of
from tests.support.fake_engine import running_fake, set_faults
from tests.support.sinks import Job, local_lab

RUN = RunName("planted")
SIZES = (100, pytest.param(1000, marks=pytest.mark.slow))  # rows
LENGTH, LIMIT, SHORT = 8, 12, 5  # tokens: each answer but its end, the run's limit, a row's own


def row(n):
    """Of a thousand rows 350 have a limit below their answer, and 20 get no answer at all."""
    own = {"max_tokens": SHORT} if n % 20 in (0, 2, 5, 7, 11, 13, 17) else {}
    silent = n % 50 == 4
    return {"id": f"r{n}", "prompt": f"{'silence' if silent else 'question'} {n}", **own}


async def told(world, *words, code=0):
    done = await asyncio.to_thread(
        forge.run, ["gen-producer", *words], env=world.env, capture_output=True, text=True
    )
    assert done.returncode == code, done
    return done.stdout


@pytest.mark.timeout(180)
@pytest.mark.parametrize("size", SIZES)
async def test_what_was_planted_in_the_rows_is_told_exactly(
    settings, store, service_env, tmp_path, size
):
    cut, empty = size * 35 // 100, size // 50
    rows = [row(n) for n in range(size)]
    assert sum("max_tokens" in one for one in rows) == cut
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    flags = ("--answer-tokens", str(LENGTH), "--token-seconds", "0.0001")
    async with (
        world_of(settings, store, service_env, tmp_path) as world,
        running_fake(world.folder, *flags, api_key="", max_running=64) as engine,
    ):
        await set_faults(engine, empty_text="silence")
        limits = ("--max-tokens", str(LIMIT), "--max-attempts", "2", "--canary-rows", "0")
        await told(world, "load", str(path), "--run", RUN, "--model", world.model, *limits)
        async with world.serving(url=engine.url, burst=True) as serving:
            assert await serving.task == Exit.DONE
        info = await world.runs.get(RUN)
        job = Job(world.client, store, world.runs, None, None, info)
        async with local_lab(settings, job) as lab:
            with pytest.raises(DeadLettersError):
                await lab.finish(bounds=Bounds(rows=400, seconds=1), suffix="parquet")
        proof = prove(store, RUN)
        assert (proof.problems, proof.committed, proof.dead) == ([], size - empty, empty)
        found = json.loads(await told(world, "report", RUN, "--json"))
    classes = {one["verdict"]: (one["kept"], one["dead"]) for one in found["classes"]}
    assert classes == {
        "ok": (size - cut - empty, 0),
        "truncated": (cut, 0),
        "empty": (0, empty),
    }
    assert [one["share"] for one in found["classes"]] == [0.63, 0.35, 0.02]
    assert found["failures"]["tries_by_class"] == {"empty": 2 * empty}
    assert found["limit"]["limits"] == [
        {"max_tokens": LIMIT, "completions": size - cut - empty, "cut": 0},
        {"max_tokens": SHORT, "completions": cut, "cut": cut},
    ]
    ended = (size - cut - empty) * (LENGTH + 1)  # each with its end token
    assert found["tokens"]["completion"] == ended + cut * SHORT
    assert found["longest"]["tokens"] == LENGTH + 1
