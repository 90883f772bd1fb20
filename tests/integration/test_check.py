"""`gen-consumer check`: an engine against itself, and against the first engine of a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from common.codec import dumps
from common.errors import EngineError, Exit, UsageError
from common.first_engine import read_first
from common.ids import RunName
from common.keys import RunKeys
from common.objectstore import RunPaths
from consumer.agreement import Agreement, record_of
from consumer.engine.honesty import unpack
from consumer.engine.honesty_paths import Probe
from consumer.engine.life import UnfitError
from consumer.engine.records import records
from consumer.tuning import check
from consumer.tuning.check import CheckOptions
from tests.support.consumers import SECONDS
from tests.support.fake_engine import FakeSglang

RUN = RunName("one")
LIES = json.dumps({"dishonest": "cached"})
OTHERWISE = json.dumps({"dishonest": "always"})


@pytest.fixture(autouse=True)
def _launched(monkeypatch):
    """What is launched as SGLang is the stand-in."""
    monkeypatch.setattr(check, "engine_named", lambda _name: FakeSglang())


async def checked(world, *flags: str, run: RunName | None = RUN, as_json: bool = True) -> Exit:
    settings = world.settings.model_copy(update={"model": world.model, "profile": "none"})
    options = CheckOptions(gpu=None, run=run, as_json=as_json, flags=flags)
    return await check.check(settings, options)


def said(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def nothing_is_left(world) -> bool:
    """Whether the run has no reference, and no engine is left."""
    kept = read_first(world.store, RUN) or world.sync.get(RunKeys(RUN).reference)
    return kept is None and not records(world.settings.state_dir)


async def test_check_compares_with_the_run_and_leaves_its_reference(world, capsys):
    await world.load(1)
    assert await checked(world) == Exit.DONE
    first = said(capsys)
    assert (first["honest"], first["compared"]) == (True, "first")
    assert len(first["answers"]) == 3
    reference = unpack(await world.runs.reference(RUN, b""))
    assert [probe.text for probe in reference] == [one["text"] for one in first["answers"]]
    assert await checked(world, as_json=False) == Exit.DONE
    assert "It agrees with the first engine of one." in capsys.readouterr().out

    with pytest.raises(EngineError, match="answers otherwise") as refusal:
        await checked(world, "--faults", OTHERWISE)
    assert refusal.value.exit_code == Exit.ENGINE
    assert not records(world.settings.state_dir)


async def test_check_of_another_model_than_the_runs_leaves_it_nothing(world):
    await world.load(1, model="/models/another")
    with pytest.raises(UsageError, match="Run one is not for this engine") as refusal:
        await checked(world)
    assert refusal.value.why.startswith("It asks for another, and this engine serves ")
    assert nothing_is_left(world)


async def test_check_of_random_weights_with_a_run_is_refused_before_any_start(world):
    await world.load(1)
    with pytest.raises(UsageError, match="Random weights are not compared"):
        await checked(world, "--load-format", "dummy")
    assert not (world.settings.state_dir / "engines").exists(), "no server was started"
    assert nothing_is_left(world)


async def test_check_against_a_run_that_is_over_leaves_it_nothing_and_says_so(world, capsys):
    await world.load(1)
    await world.runs.cancel(RUN)
    assert await checked(world) == Exit.CONFLICT
    assert said(capsys)["compared"] == "no record"
    assert nothing_is_left(world)


OF_ANOTHER_RELEASE = record_of([Probe("another prompt", "uncached", "x", (1,), (-0.1,))], None)


@pytest.mark.parametrize(
    ("record", "came", "words"),
    [
        (b"{", "unreadable", "cannot be read"),
        (dumps({"version": 2}), "unreadable", "delete engine.json"),
        (OF_ANOTHER_RELEASE, "nothing in common", "was asked other prompts"),
    ],
)
async def test_check_does_not_say_that_engines_agree_where_nothing_was_compared(
    world, capsys, record, came, words
):
    await world.load(1)
    world.store.create(RunPaths(RUN).engine, record)
    assert await checked(world) == Exit.CONFLICT
    assert said(capsys)["compared"] == came
    assert await checked(world, as_json=False) == Exit.CONFLICT
    told = capsys.readouterr().out
    assert "It was not compared" in told
    assert words in told
    assert "agrees" not in told


async def test_a_signal_while_check_compares_ends_it(world, monkeypatch, capsys):
    comparing = asyncio.Event()

    async def endless(*_):
        comparing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Agreement, "compare", endless)
    await world.load(1)
    task = asyncio.create_task(checked(world))
    await asyncio.wait_for(comparing.wait(), SECONDS)
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(task, SECONDS) == Exit.INTERRUPTED
    assert '"honest"' not in capsys.readouterr().out, "it was not checked to the end"
    assert nothing_is_left(world)


async def test_check_shows_the_texts_of_a_dishonest_engine(world):
    with pytest.raises(UnfitError, match="contradicts itself") as refusal:
        await checked(world, "--faults", LIES, run=None)
    assert refusal.value.exit_code == Exit.ENGINE
    assert "uncached: " in refusal.value.why
    assert "cached: " in refusal.value.why


@pytest.mark.parametrize("as_json", [False, True])
async def test_check_says_that_random_weights_were_asked_no_language(world, capsys, as_json):
    flags = ("--load-format", "dummy")
    assert await checked(world, *flags, run=None, as_json=as_json) == Exit.DONE
    if as_json:
        assert said(capsys)["random_weights"]
    else:
        told = capsys.readouterr().out
        assert "whether it knows a language was not asked" in told
        assert "random tokens 0" in told
