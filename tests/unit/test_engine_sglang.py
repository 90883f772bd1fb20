"""Every captured answer is read as what it was, and the stand-in's answers have their shape."""

from __future__ import annotations

import contextlib
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.records import Sampling
from consumer.engine.api import GenerateRequest, Reply
from consumer.engine.promtext import total
from consumer.engine.sglang import SglangEngine, read_load
from tests.support.captured import FIXTURES, answer_of, captured
from tests.support.fake_scheduler import Job
from tests.support.fake_sglang import SAMPLING_FIELDS

ENGINE = SglangEngine()
GENERATED = sorted(path.stem for path in FIXTURES.glob("generate_*.json"))


def body(name: str) -> bytes:
    return orjson.dumps(captured(name))


@pytest.mark.parametrize("name", GENERATED)
def test_every_captured_generation_is_read(name):
    answer = ENGINE.read(body(name))
    real = captured(name)
    assert answer.output_ids == real["output_ids"]
    assert answer.rid == real["meta_info"]["id"]
    assert answer.finish_reason == real["meta_info"]["finish_reason"]["type"]
    assert answer.completion_tokens == len(answer.output_ids)
    assert answer.text == real.get("text")


def test_what_ended_an_answer_is_told():
    assert ENGINE.read(body("generate_stop_string")).detail == "."
    assert ENGINE.read(body("generate_eos")).detail == "2"
    assert ENGINE.read(body("generate_aborted")).detail == "Aborted"


def test_cached_tokens_and_logprobs_are_read():
    assert ENGINE.read(body("generate_cached")).cached_tokens == 31
    logprobs = ENGINE.read(body("generate_logprob")).logprobs
    assert logprobs == pytest.approx([-1.4368, -1.8284, -0.8253], abs=1e-3)


def test_an_abort_in_the_queue_has_almost_nothing_in_it():
    meta = {
        "id": "a" * 32,
        "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
        "weight_version": "default",
        "e2e_latency": 0.1,
        "completion_tokens": 0,
    }
    answer = ENGINE.read(orjson.dumps({"text": "", "meta_info": meta}))
    assert (answer.finish_reason, answer.output_ids, answer.prompt_tokens) == ("abort", [], 0)


@pytest.mark.parametrize(
    "name", ["bad_too_long", "bad_empty_ids", "bad_json", "queue_full", "server_info", "batch"]
)
def test_other_answers_are_not_taken_for_generations(name):
    with pytest.raises(ValueError, match="not a whole answer"):
        ENGINE.read(body(name))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_value_error(data):
    with contextlib.suppress(ValueError):
        ENGINE.read(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["text", "output_ids", "meta_info", "id", "finish_reason", "type"]),
                inner,
            )
        ),
    )
)
def test_no_json_raises_anything_but_value_error(value):
    with contextlib.suppress(ValueError):
        ENGINE.read(orjson.dumps(value))


def test_a_finish_reason_of_null_is_an_unfinished_answer():
    real = captured("generate_ids")
    real["meta_info"]["finish_reason"] = None
    with pytest.raises(ValueError, match="not a whole answer"):
        ENGINE.read(orjson.dumps(real))


def test_only_known_sampling_fields_are_sent_and_none_is_left_out():
    every = Sampling(
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        repetition_penalty=1.1,
        stop=("a",),
        seed=7,
    )
    path, sent = ENGINE.generate(GenerateRequest("a" * 32, [1, 2], every, seed=9))
    assert path == "/generate"
    assert set(sent["sampling_params"]) <= SAMPLING_FIELDS
    assert sent["sampling_params"]["sampling_seed"] == 9
    assert sent["sampling_params"]["max_new_tokens"] == 5
    assert (sent["rid"], sent["input_ids"], sent["stream"]) == ("a" * 32, [1, 2], False)
    few = ENGINE.generate(GenerateRequest("a" * 32, [1], Sampling(max_tokens=5), seed=9))[1]
    assert few["sampling_params"] == {"max_new_tokens": 5, "sampling_seed": 9}


def test_the_captured_loads_and_metrics_make_a_sample():
    load = read_load(body("loads"), (FIXTURES / "metrics.txt").read_text())
    assert (load.running, load.waiting, load.retractions) == (0, 0, 0)
    assert load.generated_tokens == 350_762  # the counter that moves while requests run
    assert load.work > load.generated_tokens
    assert read_load(body("get_load"), "").running == 0


@pytest.mark.parametrize(
    ("status", "whole"), [(200, True), (404, True), (503, False), (None, False)]
)
async def test_counters_that_could_not_be_read_are_not_taken_for_zero(status, whole):
    """404 is somebody's server without metrics; it never had those counters."""

    class Answers:
        async def get(self, path, _seconds):
            return Reply(status, b"") if path == "/metrics" else Reply(200, body("loads"))

    load = await SglangEngine().load(Answers())
    assert load.whole is whole


@pytest.mark.parametrize(
    "rank", [{"decode_moments": [1]}, {"num_running_reqs": 1e308}, {"speculative": 3}, "a rank"]
)
async def test_figures_that_another_release_shapes_otherwise_are_a_failed_reading(rank):
    class Answers:
        async def get(self, path, _seconds):
            if path == "/metrics":
                return Reply(404, b"")
            return Reply(200, orjson.dumps({"loads": [rank, rank]}))

    assert await SglangEngine().load(Answers()) is None


def test_without_metrics_the_decode_moments_show_progress():
    loads = captured("loads")
    before = read_load(orjson.dumps(loads), "")
    loads["loads"][0]["decode_moments"][1] += 100
    after = read_load(orjson.dumps(loads), "")
    assert after.generated_tokens - before.generated_tokens == 100
    assert after.work > before.work


def test_a_metric_is_not_mistaken_for_a_longer_name_or_a_comment():
    text = '# HELP a_total words\na_total_x 5\na_total{b="1"} 2\na_total{b="2"} 3.5\na_total 1\n'
    assert total(text, "a_total") == 6.5
    assert total(text, "a_total", 'b="2"') == 3.5
    assert total(text, "a_total", 'b="9"') is None
    assert total("x NaN\n", "x") is None


def keys(value, at=""):
    if isinstance(value, dict):
        return {f"{at}.{key}" for key in value}.union(
            *(keys(inner, f"{at}.{key}") for key, inner in value.items())
        )
    return set()


def test_the_stand_ins_generation_has_every_key_of_the_captured_one():
    job = Job("a" * 32, [1], 4, 0, ignore_eos=False, stop=())
    job.output_ids, job.logprobs = [65, 258], [-0.1, -0.2]
    job.finish = {"type": "length", "length": 2}
    fake = json.loads(json.dumps(answer_of(job)))
    assert keys(captured("generate_ids")) <= keys(fake) | {".meta_info.cached_tokens_details"}
    assert ENGINE.read(orjson.dumps(fake)).output_ids == [65, 258]
