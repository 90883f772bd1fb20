from __future__ import annotations

import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.records import Sampling
from consumer.engine.api import GenerateRequest, Reply
from consumer.engine.llamacpp import LlamaCppEngine, read_load

ENGINE = LlamaCppEngine()
# As the embedded server of xllamacpp 2026.10 gave it, without the settings that it repeats.
ANSWER = {
    "index": 0,
    "content": "Hello.",
    "tokens": [19556, 30, 2],
    "id_slot": 3,
    "stop": True,
    "tokens_predicted": 3,
    "tokens_evaluated": 10,
    "has_new_line": False,
    "truncated": False,
    "stop_type": "eos",
    "stopping_word": "",
    "tokens_cached": 12,
    "timings": {"cache_n": 4, "prompt_n": 6},
    "completion_probabilities": [
        {"id": 19556, "logprob": -2.1},
        {"id": 30, "logprob": -1.4},
        {"id": 2, "logprob": -0.3},
    ],
}
METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
llamacpp:prompt_tokens_total 50
llamacpp:tokens_predicted_total 3
llamacpp:n_decode_total 22
llamacpp:requests_processing 4
llamacpp:requests_deferred 2
"""
SLOTS = [
    {"id": 0, "n_ctx": 2048, "is_processing": False},
    {
        "id": 1,
        "n_ctx": 2048,
        "is_processing": True,
        "n_prompt_tokens": 1024,
        "next_token": [{"n_decoded": 18}],
    },
]


def read(**changes):
    return ENGINE.read(orjson.dumps(ANSWER | changes))


def test_an_answer_is_read_whole():
    answer = read()
    assert (answer.output_ids, answer.text, answer.finish_reason) == (
        [19556, 30, 2],
        "Hello.",
        "stop",
    )
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (10, 3, 4)
    assert answer.logprobs == [-2.1, -1.4, -0.3]
    assert answer.rid is None


def test_how_it_ended_is_told():
    assert read(stop_type="limit").finish_reason == "length"
    assert read(stop_type="limit", truncated=True).detail == "the context is full"
    assert read(stop_type="word", stopping_word="STOP").detail == "STOP"
    assert read(stop_type="none").finish_reason == "abort"


@pytest.mark.parametrize("missing", ["tokens", "content", "stop_type", "tokens_predicted"])
def test_an_answer_with_a_part_missing_is_refused(missing):
    with pytest.raises(ValueError, match="not a whole answer"):
        ENGINE.read(orjson.dumps({k: v for k, v in ANSWER.items() if k != missing}))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_value_error(data):
    with contextlib.suppress(ValueError):
        ENGINE.read(data)


def test_a_request_has_ids_in_and_asks_for_ids_out():
    sampling = Sampling(max_tokens=5, temperature=0.0, repetition_penalty=1.1, stop=("x",))
    request = GenerateRequest("a" * 32, [1, 2], sampling, seed=9)
    path, body = ENGINE.generate(request)
    assert path == "/completion"
    assert body == {
        "prompt": [1, 2],
        "n_predict": 5,
        "temperature": 0.0,
        "repeat_penalty": 1.1,
        "stop": ["x"],
        "seed": 9,
        "stream": False,
        "return_tokens": True,
        "cache_prompt": True,
    }


def test_running_requests_count_although_the_token_counter_moves_only_at_their_end():
    load = read_load(METRICS, orjson.dumps(SLOTS))
    assert (load.running, load.waiting) == (4, 2)
    assert load.generated_tokens == 3 + 18
    assert load.token_usage == 0.5
    assert load.work == 22 + 50


def test_other_servers_metrics_are_refused():
    with pytest.raises(ValueError, match="llamacpp"):
        read_load("something_else 1\n", b"[]")


@pytest.mark.parametrize("change", [{"n_ctx": 0}, {"next_token": []}, {"next_token": None}])
async def test_slots_that_another_release_shapes_otherwise_are_a_failed_reading(change):
    slots = [slot | change for slot in SLOTS]

    class Answers:
        async def get(self, path, _seconds):
            return Reply(200, METRICS.encode() if path == "/metrics" else orjson.dumps(slots))

    assert await ENGINE.load(Answers()) is None
