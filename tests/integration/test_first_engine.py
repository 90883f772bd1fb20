"""A run's first engine is remembered beside run.json: whatever becomes of Redis, none mixes in."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from common.errors import EngineError, Exit, StoreAwayError
from common.first_engine import read_first
from common.ids import RunName
from common.keys import RunKeys
from common.objectstore import Created, RunPaths
from common.queue.prompts import QueueLimits
from common.s3 import open_store
from common.settings import load_settings
from consumer import start
from consumer.agreement import Agreement, Came, answers_of, record_of
from consumer.engine.honesty import Honesty, pack
from consumer.engine.honesty_paths import Probe
from consumer.engine.honesty_texts import QUESTIONS
from consumer.engine.supervisor import StartBudget
from consumer.leases.catalogue import UNREADABLE, Catalogue
from tests.support import forge
from tests.support.fake_engine import FakeSglang
from tests.support.leases import FACTS
from tests.support.s3_exchange import CREATE, GET, Operation
from tests.support.s3_proxy import s3_proxy
from tests.support.servers import eventually

BUDGET = StartBudget(attempts=3, backoff_base_seconds=0.05, kill_seconds=0.3, poll_seconds=0.05)
OTHERWISE = ("--faults", json.dumps({"dishonest": "always"}))
SLOW = ("--token-seconds", "0.01", "--answer-tokens", "40")
RUN = RunName("one")
KEY = RunPaths(RUN).engine


def honesty(first: float = -0.1) -> Honesty:
    """What was accepted of an engine; ``first``: the log-probability of its first tokens."""
    check = Honesty(reference=answers_with(first))
    check.answers = check.record
    return check


def answers_with(first: float, names=QUESTIONS) -> tuple[Probe, ...]:
    logprobs = (first, -0.2, -0.3)
    return tuple(Probe(name, "uncached", "x", (1, 2, 3), logprobs) for name in names)


def one_of(world, first: float = -0.1, store=None) -> Agreement:
    return Agreement(world.runs, honesty(first), store or world.store)


@pytest.fixture
def proxied(s3_server, store_settings, monkeypatch):
    """The same store behind a proxy that fails; a call is tried once."""
    monkeypatch.setattr("common.s3.store.RETRY_ATTEMPTS", 1)
    with s3_proxy(s3_server) as proxy:
        yield proxy, open_store(load_settings(**{**store_settings, "s3_endpoint": proxy.url}))


async def reloaded(world) -> None:
    """`gen-producer load --run one`, after Redis has lost everything."""
    world.sync.flushall()
    command = ["gen-producer", "load", "--run", RUN]
    await asyncio.to_thread(forge.run, command, env=world.env, check=True, capture_output=True)


async def test_after_a_loss_of_redis_another_engine_still_serves_nothing_of_the_run(
    world, monkeypatch
):
    monkeypatch.setattr(start, "engine_named", lambda _name: FakeSglang())
    await world.load(30)
    async with world.serving(honesty=True, budget=BUDGET, flags=SLOW):
        await world.some_generated()
    kept = json.loads(world.store.get(KEY))
    assert (kept["version"], kept["engine"][:7]) == (1, "sglang ")
    assert (kept["paths"]["uncached"], kept["paths"]["cached"]) == ("exercised", "exercised")
    assert [one["prompt"] for one in kept["answers"]] == list(QUESTIONS)

    await reloaded(world)
    assert (await world.counts()).queued == 30
    with pytest.raises(EngineError, match="otherwise than the first one"):
        await world.burst(honesty=True, budget=BUDGET, flags=OTHERWISE)
    assert (await world.counts()).generated == 0
    assert json.loads(world.store.get(KEY)) == kept
    assert await world.burst(honesty=True, budget=BUDGET) == Exit.DONE
    assert (await world.counts()).generated == 30


@pytest.mark.parametrize("fault", ["", "strip", "501 NotImplemented", "answer lost"])
async def test_of_engines_that_come_at_once_one_is_the_first_whatever_the_store_does(
    world, proxied, fault
):
    proxy, store = proxied
    await world.load(1)
    info = await world.runs.get(RUN)
    if fault:
        proxy.fail(fault, on={CREATE})
    both = [one_of(world, first, store) for first in (-0.1, -5.0, -0.1, -5.0)]
    said = await asyncio.gather(*(one.objection(info) for one in both))
    assert [bool(why) for why in said] in ([False, True] * 2, [True, False] * 2)
    right = -5.0 if said[0] else -0.1
    answers = answers_of(read_first(store, RUN))
    assert {one.logprobs[0] for one in answers} == {right}
    assert world.sync.get(RunKeys(RUN).reference) == pack(honesty(right).record)


async def test_what_only_redis_remembers_of_an_earlier_release_is_put_beside_the_run(world):
    await world.load(1)
    info = await world.runs.get(RUN)
    world.sync.set(RunKeys(RUN).reference, pack(honesty(-5.0).record))
    assert await one_of(world).objection(info)
    kept = world.store.get(KEY)
    assert answers_of(kept) == honesty(-5.0).record
    assert json.loads(kept)["engine"] == "", "it is not known which"


async def test_where_the_store_holds_another_record_than_redis_the_store_is_right(world):
    """A consumer of an earlier release left its own in Redis after a loss."""
    await world.load(1)
    info = await world.runs.get(RUN)
    world.store.create(KEY, record_of(honesty(-5.0).record, None))
    world.sync.set(RunKeys(RUN).reference, pack(honesty().record))
    assert await one_of(world).objection(info)
    assert await one_of(world, -5.0).objection(info) == ""


async def test_a_run_waits_for_a_store_that_does_not_say_who_was_first(world, proxied):
    """Nothing is leased on a guess; and it goes on by itself."""
    proxy, store = proxied
    await world.load(3)
    limits = QueueLimits()
    facts = replace(FACTS, model=world.model)
    catalogue = Catalogue(
        world.client,
        world.runs,
        world.store,
        limits,
        objection=one_of(world, store=store).objection,
    )
    proxy.fail("503", on={GET}, path=KEY)
    await catalogue.refresh(facts)
    assert (catalogue.active, catalogue.closed, catalogue.store_away) == ([], UNREADABLE, True)
    assert isinstance(catalogue.unreadable[RUN], StoreAwayError)
    proxy.mend()

    async def served() -> bool:
        await catalogue.refresh(facts)
        return [one.info.run for one in catalogue.active] == [RUN]

    await eventually(served)
    assert catalogue.unreadable == {}


async def test_a_store_that_may_not_be_written_leaves_it_to_redis_and_says_so(world, proxied):
    proxy, store = proxied
    await world.load(1)
    info = await world.runs.get(RUN)
    proxy.fail("403 AccessDenied", on={CREATE, Operation.PUT})
    with capture_logs() as logs:
        assert await one_of(world, store=store).objection(info) == ""
    assert [line["event"] for line in logs] == [
        "the run's first engine is remembered in Redis only"
    ]
    assert await one_of(world, -5.0, store).objection(info)


async def test_a_record_that_cannot_be_read_is_left_as_it_is_and_said(world):
    await world.load(1)
    info = await world.runs.get(RUN)
    assert world.store.create(KEY, b"{") is Created.CREATED
    agreement = one_of(world)
    with capture_logs() as logs:
        assert await agreement.objection(info) == ""
    assert any("cannot be read" in line["event"] for line in logs)
    assert (await agreement.compare(info)).came is Came.UNREADABLE
    assert world.store.get(KEY) == b"{"
    assert world.sync.get(RunKeys(RUN).reference) is None


async def test_where_the_record_in_the_store_is_damaged_the_one_in_redis_still_counts(world):
    await world.load(1)
    info = await world.runs.get(RUN)
    world.store.create(KEY, b"{")
    world.sync.set(RunKeys(RUN).reference, pack(honesty().record))
    with capture_logs() as logs:
        assert (await one_of(world).compare(info)).came is Came.AGREED
    assert any("Redis says who was first" in line["event"] for line in logs)
    assert await one_of(world, -5.0).objection(info)
    assert world.store.get(KEY) == b"{"


async def test_an_engine_that_was_asked_other_prompts_is_not_said_to_agree(world):
    await world.load(1)
    info = await world.runs.get(RUN)
    world.store.create(KEY, record_of(answers_with(-0.1, ["of another release"]), None))
    agreement = one_of(world)
    with capture_logs() as logs:
        assert await agreement.objection(info) == ""
    assert any("nothing to compare" in line["event"] for line in logs)
    assert (await agreement.compare(info)).came is Came.NOTHING_IN_COMMON


async def test_who_is_first_is_told_from_who_agrees(world):
    await world.load(1)
    info = await world.runs.get(RUN)
    assert (await one_of(world).compare(info)).came is Came.FIRST
    assert (await one_of(world, -0.2).compare(info)).came is Came.AGREED
    assert (await one_of(world, -5.0).compare(info)).came is Came.DIFFERS
    assert (await Agreement(world.runs, None, world.store).compare(info)).came is Came.NOT_CHECKED


@pytest.mark.parametrize("in_redis", [False, True])
async def test_who_only_asks_leaves_nothing_behind(world, in_redis):
    await world.load(1)
    info = await world.runs.get(RUN)
    reference = pack(honesty().record) if in_redis else None
    if reference:
        world.sync.set(RunKeys(RUN).reference, reference)
    agreement = Agreement(world.runs, honesty(), world.store, offers=False)
    came = (await agreement.compare(info)).came
    assert came is (Came.AGREED if in_redis else Came.NO_RECORD)
    assert read_first(world.store, RUN) is None
    assert world.sync.get(RunKeys(RUN).reference) == reference


async def test_an_engine_that_was_started_anew_is_compared_anew(world):
    """Each start may differ a little from the first; the run's first engine stays the measure."""
    await world.load(1)
    info = await world.runs.get(RUN)
    world.store.create(KEY, record_of(answers_with(-1.0), None))
    check = honesty(-2.2)
    agreement = Agreement(world.runs, check, world.store)
    assert await agreement.objection(info) == ""
    check.answers = answers_with(-3.4)
    assert "first: " in await agreement.objection(info)
    check.answers = answers_with(-1.1)
    assert await agreement.objection(info) == ""
