"""What a round may turn, its prompts, and how the steady state is told from the ramp."""

from __future__ import annotations

import itertools

import pytest

from common.errors import InputError, UsageError
from consumer.engine.api import EngineFacts, EngineLoad
from consumer.tuning.memory import budget
from consumer.tuning.prompts import Feed, file_sample, parse_random, random_sample
from consumer.tuning.serving import serving_of
from consumer.tuning.space import Allowed, Lengths, Space, describe
from consumer.tuning.steady import Meter, Pace
from tests.support.boots import hybrid
from tests.support.simulated import CARD
from tests.support.tiny_tokenizer import VOCAB_SIZE, build_model_folder

BASE = ("--language-model-only",)


def space_of(*base: str, known: bool = True, **fields) -> Space:
    values = {"lengths": Lengths(256, 256), "default_running": 49}
    if known:
        values |= {"shape": hybrid(), "memory_bytes": CARD.memory_bytes, "card": CARD}
    return Space(base=(*BASE, *base), **(values | fields))


@pytest.mark.parametrize("allowed", [Allowed(), Allowed(state_dtype=True, kv_dtype=True)])
def test_everything_that_is_tried_fits_the_card(allowed):
    space = space_of(allowed=allowed)
    choices = space.choices()
    points = [*space.first()]
    for radix, fill, fraction in itertools.product(("on", "off"), (1.0, 0.25), ("auto", "safe")):
        points.append({k: v[0] for k, v in choices.items()})
        points[-1] |= {"radix": radix, "fill": fill, "fraction": fraction, "drafts": 3}
    for point in points:
        setting = space.setting(point)
        one = budget(hybrid(), CARD.memory_bytes, serving_of((*space.base, *setting.flags)))
        assert one.fits
        assert one.running == setting.running
        assert one.running * space.lengths.tokens <= one.kv_tokens
        assert setting.window >= setting.running


def test_the_most_promising_comes_first_and_leaves_the_outputs_alone():
    space = space_of()
    settings = [space.setting(point) for point in space.first()]
    assert "--disable-radix-cache" in settings[0].flags
    assert settings[0].running > 8 * 49
    assert not any(setting.changes_outputs for setting in settings)
    assert len({setting.key for setting in settings}) == len(settings)
    half = space_of(allowed=Allowed(state_dtype=True))
    best = half.setting(half.first()[0])
    assert best.changes_outputs
    assert best.running > settings[0].running


def test_a_cache_that_serves_most_of_the_prompts_is_kept():
    shared = space_of(lengths=Lengths(8000, 64, cached=0.97))
    assert "--disable-radix-cache" not in shared.setting(shared.first()[0]).flags


def test_what_the_user_gave_is_not_turned():
    base = ("--disable-radix-cache", "--mem-fraction-static=0.8", "--cuda-graph-max-bs", "64")
    choices = space_of(*base).choices()
    assert not {"radix", "fraction", "graphs"}.intersection(choices)
    assert "fill" in choices
    assert "fill" not in space_of("--max-running-requests", "64").choices()


@pytest.mark.parametrize("allowed", [Allowed(), Allowed(state_dtype=True)])
def test_reading_several_prompts_at_a_time_is_the_second_thing_tried(allowed):
    space = space_of(allowed=allowed)
    best, four, fewer = (space.setting(point) for point in space.first()[:3])
    assert {*four.flags} == {*best.flags, "--min-free-slots-delay", "4"}
    assert four.changes_outputs == best.changes_outputs == allowed.state_dtype
    assert "admit=4" in describe(four.point)
    assert "--min-free-slots-delay" in fewer.flags
    assert fewer.running < four.running
    assert "admit" not in space_of("--min-free-slots-delay", "2").choices()


def test_drafts_are_tried_where_they_mean_something():
    assert "drafts" in space_of().choices()
    assert "drafts" not in space_of("--load-format", "dummy").choices()
    assert "drafts" not in space_of(allowed=Allowed(drafts=False)).choices()


def test_without_arithmetic_the_engines_own_figure_is_the_measure():
    space = space_of(known=False)
    settings = [space.setting(point) for point in space.first()]
    assert max(setting.running for setting in settings) == 4 * 49
    assert all(setting.predicted is None for setting in settings)


def load(running: int, tokens: int, **changes) -> EngineLoad:
    return EngineLoad(running, changes.pop("waiting", 0), 0.5, tokens, 0, **changes)


def test_the_rate_is_that_of_the_steady_state_between_moves_of_the_counter():
    meter = Meter(100, Pace(settle_seconds=2.0, rungs=((4.0, 0.5),)))
    for second in range(10):  # the ramp: ever more run, at a tenth of the speed
        meter.observe(second, load(10 * second, 100 * second))
        assert not meter.steady
    for second in range(10, 40):
        moved = 1000 + 5000 * ((second - 10) // 3)  # it moves every third second
        meter.observe(second, load(100, moved))
    assert meter.steady
    assert meter.rate == pytest.approx(5000 / 3)
    assert meter.rungs[4.0] == pytest.approx(5000 / 3)
    assert meter.behind({4.0: 5000.0})
    assert not meter.behind({4.0: 3000.0})
    assert meter.silent_seconds(45.0, since=0.0) == pytest.approx(8.0)


def test_an_engine_that_still_gets_faster_is_not_measured_yet():
    meter = Meter(100, Pace())
    tokens = 0
    for second in range(14):  # full from the start, and warm after some ten seconds
        meter.observe(second, load(100, tokens))
        assert not meter.steady
        tokens += min(1000, 500 + 50 * second)
    for second in range(14, 40):
        meter.observe(second, load(100, tokens))
        tokens += 1000
    assert meter.rate == pytest.approx(1000)


def test_one_that_never_stops_rising_is_measured_after_a_while():
    meter = Meter(100, Pace(warm_seconds=20.0))
    for second in range(40):
        meter.observe(second, load(100, 50 * second * second))
        assert meter.steady == (second >= 20 + 1)  # it is full once it has generated something
    assert meter.rate > 2000


def test_an_engine_that_runs_fewer_than_hoped_is_measured_all_the_same():
    meter = Meter(100, Pace(settle_seconds=1.0))
    for second in range(20):
        meter.observe(second, load(40, 500 * second, waiting=60))
    assert meter.rate == pytest.approx(500)
    assert meter.running == 40


FACTS = EngineFacts("sglang", "0.5.17", "m", "", VOCAB_SIZE, 4096, 8, 100_000)


def test_the_first_wave_is_cut_at_random_places_and_the_others_are_whole():
    sample = random_sample("random:16:100")
    feed = Feed(
        lambda: sample.stream(FACTS, held_out=False, seed=1), FACTS, wave=50, output_tokens=100
    )
    limits = [feed.next().sampling.max_tokens for _ in range(80)]
    assert min(limits[:50]) < 20
    assert len(set(limits[:50])) > 20
    assert set(limits[50:]) == {100}


def test_random_prompts_differ_by_trial_and_are_in_the_vocabulary():
    sample = random_sample("random:16:4")
    one, two = (
        [prompt.input_ids for prompt in itertools.islice(stream, 50)]
        for stream in (sample.stream(FACTS, held_out=False, seed=seed) for seed in (1, 2))
    )
    assert not {tuple(ids) for ids in one} & {tuple(ids) for ids in two}
    assert all(0 <= i < VOCAB_SIZE for ids in one for i in ids)


@pytest.mark.parametrize("text", ["random", "random:0:5", "random:a:b", "random:1:2:3"])
def test_lengths_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match="--prompts cannot be"):
        parse_random(text)


async def test_prompts_of_a_file_are_rendered_and_half_of_them_held_out(tmp_path):
    model = str(build_model_folder(tmp_path / "tiny-model"))
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"text": "b"}\n\n{"input_ids": [1, 2], "max_tokens": 7}\n')
    sample = await file_sample(path, model)
    assert len(sample.search) == 1
    assert sample.held_out[1].input_ids == [1, 2]
    assert sample.output_tokens == 7
    feed = Feed(
        lambda: sample.stream(FACTS, held_out=True, seed=0), FACTS, wave=0, output_tokens=None
    )
    asked = [list(feed.next().input_ids) for _ in range(6)]
    first, second = asked[:2]
    assert second == [1, 2]
    assert len({tuple(ids) for ids in asked}) == 6, "no cache knows a prompt that comes again"
    assert [ids[-1] for ids in asked] == [first[-1], 2] * 3
    assert {ids[0] for ids in asked[2:]} <= {first[0], 1}
    path.write_text('{"prompt": "a"}\n{"question": 1}\n')
    with pytest.raises(InputError, match=r"p\.jsonl:2 is no prompt"):
        await file_sample(path, model)
