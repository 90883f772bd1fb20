"""Conversations, duplicates, cut prompts and equal tokens through real parts and the stand-in."""

from __future__ import annotations

import asyncio
import signal

import pytest

from common.build import build
from common.errors import EngineError, Exit
from common.ids import RunName
from common.keys import RunKeys
from common.records import Completion, Row, RunSettings, Sampling
from consumer import start
from consumer.start import Options, serve
from producer.status.data import Watcher
from producer.status.view import screen
from tests.support.consumers import SECONDS, enqueue_run, rows_of, store_rows
from tests.support.fake_engine import FakeSglang, fake_state, set_faults
from tests.support.servers import eventually

TALK = [{"role": "user", "content": text} for text in ("one?", "two?")]
KEYS = RunKeys("one")


async def load_rows(world, rows, **settings) -> None:
    plain = {"model": world.model, "model_fingerprint": "", "sampling": Sampling(max_tokens=60)}
    manifest = store_rows(world.store, "one", rows, RunSettings(**{**plain, **settings}))
    await enqueue_run(world.client, manifest)


def talks(n: int) -> list[Row]:
    return [Row(i=i, messages=TALK, id=f"talk-{i}") for i in range(n)]


def completions(world) -> list[Completion]:
    return [build(Completion, one) for one in world.results()]


async def second_turn_runs(world) -> None:
    await eventually(lambda: world.sync.hlen(KEYS.turns) == 1, 60)


async def assert_went_on(world, engine) -> None:
    await world.generated(1)
    (whole,) = completions(world)
    (turn,) = whole.turns
    assert [m["content"] for m in whole.messages] == ["one?", turn.content, "two?"]
    assert bytes(turn.output_ids).decode() == turn.content
    assert (await fake_state(engine))["requests"] == 3  # the first turn was asked for once
    assert world.sync.hlen(KEYS.turns) == 0
    assert int(world.sync.hget(KEYS.counts, "turns_bytes")) == 0


async def test_a_conversation_given_back_goes_on_with_the_next_consumer(world, slow_engine) -> None:
    await load_rows(world, talks(1), sampling=Sampling(max_tokens=30))
    async with world.serving(url=slow_engine.url):
        await second_turn_runs(world)
    async with world.serving(url=slow_engine.url):
        await assert_went_on(world, slow_engine)


@pytest.mark.faults
@pytest.mark.timeout(180)
async def test_a_conversation_outlives_a_killed_consumer(world, slow_engine) -> None:
    await load_rows(world, talks(1), sampling=Sampling(max_tokens=150))
    with world.consume("--url", slow_engine.url, log="first.log") as first:
        await second_turn_runs(world)
        first.signal(signal.SIGKILL)
        first.wait()
    with world.consume("--url", slow_engine.url, log="second.log"):
        await assert_went_on(world, slow_engine)


@pytest.mark.row("F8")
async def test_equal_rows_and_samples_get_completions_and_seeds_of_their_own(world, engine) -> None:
    await load_rows(world, rows_of(*["the same"] * 6), samples=2)
    assert await world.burst(url=engine.url) == Exit.DONE
    done = completions(world)
    assert sorted(one.k for one in done) == list(range(12))
    assert sorted((one.row, one.sample) for one in done) == [(n // 2, n % 2) for n in range(12)]
    assert len({one.seed for one in done}) == 12
    assert len({tuple(one.output_ids) for one in done}) == 12  # the seeds were sent


@pytest.mark.row("F5")
async def test_a_prompt_that_arrived_cut_is_charged_and_asked_again(world, engine) -> None:
    await set_faults(engine, cut_prompts=1)
    await load_rows(world, rows_of("a", "b"), canary_rows=0)
    async with world.serving(url=engine.url):
        await world.generated(2)
    assert (await world.counts()).failures == {"input_truncated": 1}
    for one in completions(world):
        assert len(one.input_ids) == one.usage.prompt_tokens


async def test_kept_answers_need_no_token_of_the_engine(world, engine) -> None:
    said = {"role": "assistant", "content": "Paris.", "reasoning_content": "hm"}
    rows = [Row(i=i, messages=[TALK[0], said]) for i in range(3)]
    await load_rows(world, rows, keep_answers=True)
    assert await world.burst(url=engine.url) == Exit.DONE
    assert (await fake_state(engine))["requests"] == 0
    for one in completions(world):
        assert (one.content, one.reasoning_content, one.verdict) == ("Paris.", "hm", "ok")
        assert bytes(one.output_ids[:-1]).decode() == "<think>\nhm\n</think>\n\nParis."
        assert one.output_ids[-1] == 258  # the template's end of a turn
        assert one.usage.reasoning_tokens == len("<think>\nhm\n</think>")


# Equal tokens for equal seeds


async def test_an_engine_that_cannot_promise_equal_tokens_leaves_the_run_alone(
    world, engine
) -> None:
    await load_rows(world, rows_of("a"), reproducible=True)
    with pytest.raises(EngineError, match="equal tokens") as refused:
        await world.burst(url=engine.url)
    assert "--reproducible" in refused.value.fix
    assert "one" in refused.value.why
    assert (await world.counts()).queued == 1


async def test_a_run_that_no_consumer_here_may_serve_is_told_so_by_status(world, engine) -> None:
    await load_rows(world, rows_of("a"), reproducible=True)

    async def looked() -> str:
        (status,) = await Watcher(world.client, world.settings).look(RunName("one"))
        assert status.reproducible
        said = screen(status)
        return said if "stalled: it asks for equal tokens" in said else ""

    async with world.serving(url=engine.url):
        said = await eventually(looked, SECONDS)
    assert "no consumer was started with --reproducible" in said
    assert said.endswith(" --reproducible")


async def test_one_that_was_launched_for_it_serves_the_run(world, monkeypatch) -> None:
    monkeypatch.setattr(start, "engine_named", lambda _name: FakeSglang())
    await load_rows(world, rows_of("a"), reproducible=True)
    assert await world.burst(reproducible=True) == Exit.DONE
    assert len(world.results()) == 1


@pytest.mark.engine
@pytest.mark.timeout(180)
async def test_a_rerun_on_the_real_engine_gives_equal_tokens(world) -> None:
    """Two runs of equal rows and settings, one after the other; other seeds give other tokens."""
    plain = {"model": "smollm2", "model_fingerprint": "", "reproducible": True}
    warm = Sampling(max_tokens=16, temperature=1.0)
    rows = rows_of("Name a colour.", "Name a colour.", "Tell me about rivers.")
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        settings = RunSettings(**plain, sampling=warm, seed=seed)
        await enqueue_run(world.client, store_rows(world.store, name, rows, settings))
    own = {"model": "smollm2", "engine": "llamacpp", "honesty": False}
    options = Options(burst=True, reproducible=True, context=512)
    done = serve(world.settings.model_copy(update=own), options)
    assert await asyncio.wait_for(done, 150) == Exit.DONE
    said = {
        name: {one["k"]: one["output_ids"] for one in world.results(name)}
        for name in ("one", "again", "other")
    }
    assert len(said["one"]) == 3
    for one in world.results("one"):
        assert one["usage"]["completion_tokens"] == len(one["output_ids"])
        assert one["usage"]["prompt_tokens"] == len(one["input_ids"])
    assert said["one"] == said["again"]
    assert said["one"] != said["other"]
    assert said["one"][0] != said["one"][1]  # duplicates have seeds of their own
