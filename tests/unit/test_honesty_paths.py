"""Which paths the honesty check has taken, told from the counts of cached tokens."""

from __future__ import annotations

import dataclasses

import pytest

from common.codec import dumps
from consumer.engine.honesty import judge, pack, unpack
from consumer.engine.honesty_paths import Asked, Probe, paths_of
from consumer.engine.honesty_texts import QUESTIONS, TEXTS
from consumer.engine.sglang import SglangEngine
from tests.support.captured import captured

CHUNK = 256  # the longest distance at which a hybrid model keeps its states


def probe(cached, way="cached", prompt="a") -> Probe:
    return Probe(prompt, way, "x", (1, 2), (-0.1, -0.2), cached, 300)


def asked(uncached, cached, *, shared=0, forgotten=True) -> Asked:
    first, again = (probe(uncached, "uncached"),), (probe(cached),)
    return Asked(first, again, (), {"a": shared}, forgotten)


@pytest.mark.parametrize(
    ("answers", "prefix_cache", "expected"),
    [
        (asked(0, 299), True, ("exercised", "exercised")),
        (asked(0, 256), None, ("exercised", "exercised")),
        (asked(0, 0), True, ("exercised", "not exercised")),
        (asked(0, 0), None, ("exercised", "not exercised")),
        (asked(0, 0), False, ("exercised", "no cache")),
        (asked(299, 299), True, ("not exercised", "exercised")),
        (asked(299, 299, forgotten=False), True, ("not exercised", "exercised")),
        (asked(0, 299, forgotten=False), True, ("exercised", "exercised")),
        (asked(None, None), True, ("exercised", "not known")),
        (asked(None, None, forgotten=False), None, ("not known", "not known")),
        # The head of a chat template is everybody's, and tells nothing.
        (asked(25, 25, shared=25), True, ("exercised", "not exercised")),
        (asked(25, 299, shared=25), True, ("exercised", "exercised")),
    ],
)
def test_a_path_counts_as_taken_where_the_answers_say_so(answers, prefix_cache, expected):
    paths = paths_of(answers, prefix_cache=prefix_cache)
    assert (paths.uncached, paths.cached) == expected
    doubts = [word for word in expected if word in ("not exercised", "not known")]
    assert len(paths.doubts) == len(doubts)
    assert all(any(word in doubt for doubt in paths.doubts) for word in doubts)


def test_the_texts_are_long_enough_for_the_cache_of_a_hybrid_and_begin_apart():
    texts = [text.split() for text in TEXTS.values()]
    assert min(len(words) for words in texts) > CHUNK  # a word is at least a token
    assert len({words[0] for words in texts}) == len(TEXTS) > 1
    assert not TEXTS.keys() & QUESTIONS.keys()


def test_an_answer_that_says_nothing_of_its_cache_is_not_taken_for_an_uncached_one():
    body = captured("generate_logprob")
    assert SglangEngine().read(dumps(body)).tells_cached
    del body["meta_info"]["cached_tokens"]
    assert not SglangEngine().read(dumps(body)).tells_cached


def test_a_record_of_an_earlier_release_is_still_read_and_compared():
    mine = (probe(0, "uncached"),)
    assert unpack(pack(mine)) == mine
    old = dataclasses.asdict(mine[0])
    del old["cached_tokens"], old["prompt_tokens"]
    (read,) = unpack(dumps([old]))
    assert (read.cached_tokens, read.prompt_tokens) == (None, None)
    judge((read,), mine, 0.25)
