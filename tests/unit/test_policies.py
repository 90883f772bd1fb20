"""What a load may say about answers of each class, and what is refused before anything is read."""

from __future__ import annotations

import pytest

from common.errors import UsageError
from common.records import DEFAULT_POLICIES, ENGINE_FAULTS, RunSettings, Sampling
from producer.load.policies import CHOICES, parse_policies, refuse_idle
from producer.manifest import Wishes, settings_differences

RETRIED = {"truncated": "retry"}


def wanted(**wishes) -> RunSettings:
    return Wishes(**wishes).over(RunSettings(model="m", model_fingerprint=""), lambda _: "")


def test_every_class_that_has_a_policy_can_be_given_one():
    assert set(CHOICES) == set(DEFAULT_POLICIES)
    for name, choices in CHOICES.items():
        assert DEFAULT_POLICIES[name] in choices
        for policy in choices:
            assert parse_policies([f"{name}={policy}"]) == {name: policy}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["timeout=retry"], "fault of the engine"),
        (["truncatedd=retry"], "no class 'truncatedd'"),
        (["ok=keep"], "no class 'ok'"),
        (["truncated"], "keep or retry or dead"),
        (["empty=again"], "keep or retry or dead"),
        (["too_long=keep"], "may be dead"),
        (["content_error=keep"], "retry or dead"),
        (["empty=dead", "empty=keep"], "twice"),
    ],
)
def test_nonsense_is_refused_with_what_could_be_said(words, said):
    with pytest.raises(UsageError) as refused:
        parse_policies(words)
    assert said in f"{refused.value.what} {refused.value.why}"
    assert refused.value.fix


def test_no_engine_fault_has_a_policy():
    for name in ENGINE_FAULTS:
        with pytest.raises(UsageError, match="engine"):
            parse_policies([f"{name}=keep"])


def test_named_policies_leave_the_others_as_they_are():
    settings = wanted(policies=RETRIED)
    assert settings.policies == {str(k): str(v) for k, v in DEFAULT_POLICIES.items()} | RETRIED
    assert settings_differences(wanted(), settings) == [
        "policy of truncated: was keep, now retry",
    ]


def test_every_new_setting_is_told_apart_by_its_name():
    other = wanted(retry_max_tokens=9, keep_answers=True, reproducible=True)
    assert settings_differences(wanted(), other) == [
        "keep_answers: was False, now True",
        "reproducible: was False, now True",
        "retry_max_tokens: was not set, now 9",
    ]


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        (
            {"retry_max_tokens": 64, "policies": {"thought_only": "dead"}},
            "truncated is keep, thought_only is dead",
        ),
        (
            {"retry_max_tokens": 8, "policies": RETRIED, "sampling": Sampling(max_tokens=8)},
            "no higher",
        ),
        ({"keep_answers": True, "samples": 2}, "--samples 2"),
    ],
)
def test_settings_that_could_never_be_of_use_are_refused(wishes, said):
    with pytest.raises(UsageError) as refused:
        refuse_idle(wanted(**wishes))
    assert said in f"{refused.value.what} {refused.value.why}"


def test_useful_ones_are_not():
    refuse_idle(wanted())
    refuse_idle(wanted(keep_answers=True))
    limits = Sampling(max_tokens=8)
    refuse_idle(wanted(retry_max_tokens=16, policies=RETRIED, sampling=limits))
    refuse_idle(wanted(retry_max_tokens=16, sampling=limits))  # for thoughts that were cut off
