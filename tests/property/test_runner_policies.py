"""Whatever an engine says and whatever a run was told: an item ends in exactly one way."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from common.records import DEFAULT_POLICIES, ENGINE_FAULTS, Policy, Sampling, Verdict
from consumer.engine.api import Reply
from tests.support.runners import completion, run, work

CLASSES = [*map(str, Verdict), "nonsense"]
policies = st.dictionaries(
    st.sampled_from(CLASSES), st.sampled_from([*map(str, Policy), "nonsense"]), max_size=6
)
limits = st.none() | st.integers(1, 1 << 40)
told = st.fixed_dictionaries(
    {
        "policies": policies,
        "retry_max_tokens": limits,
        "sampling": st.builds(Sampling, max_tokens=limits, seed=limits),
        "thinking": st.none() | st.booleans(),
        "reproducible": st.booleans(),
        "seed": st.integers(0, 2**31 - 1),
    }
)
texts = st.sampled_from(["Paris.", "", " \n", "<think>hm", "<think>hm</think>", "again " * 40])
replies = st.one_of(
    st.tuples(texts, st.sampled_from(["stop", "length", "abort"])),
    st.builds(Reply, st.none() | st.integers(200, 599), st.binary(max_size=60)),
)


@settings(max_examples=60)
@given(told=told, reply=replies, attempt=st.integers(1, 9))
def test_an_item_ends_in_one_way_that_its_run_allows(told, reply, attempt) -> None:
    ended = asyncio.run(run(work("hi", attempt=attempt, **told), reply))
    assert (ended.finished is not None) + (ended.failure is not None) <= 1
    verdict = ended.verdict
    if ended.finished is not None:
        assert completion(ended)["verdict"] == verdict
        if verdict is not Verdict.OK:
            policy = told["policies"].get(str(verdict))
            assert policy == "keep" or DEFAULT_POLICIES[verdict] is Policy.KEEP
    elif ended.failure is not None:
        assert ended.failure.verdict is verdict is not Verdict.OK
        assert ended.failure.charged is (verdict not in ENGINE_FAULTS)
        if told["policies"].get(str(verdict)) == "dead":
            assert ended.failure.final is ended.failure.charged
    else:
        assert ended.engine_fault
