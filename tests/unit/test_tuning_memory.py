"""The arithmetic against starts of real servers, and what must hold whatever the flags."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.tuning.cards import GIB, card_named
from consumer.tuning.lifts import lifts, most_running, usable
from consumer.tuning.memory import budget
from consumer.tuning.model import shape_of
from consumer.tuning.roofline import roofline
from consumer.tuning.serving import Serving, serving_of
from tests.support.boots import FLAGS, MTP, Start, config_of, hybrid, near, smol

HYBRID = hybrid()
H200 = card_named("H200")
B200 = card_named("B200")
STARTED = sorted(set(FLAGS) - {"mtp_too_many"})


@pytest.mark.parametrize("name", STARTED)
def test_a_start_is_predicted_from_config_and_card_alone(name):
    start = Start(name)
    one = budget(HYBRID, H200.memory_bytes, serving_of(start.flags))
    parts = {part.name: part.bytes for part in one.parts}
    boot, info = start.boot, start.info
    assert one.fits
    assert one.running == start.running
    assert abs(one.state_slots - boot.state_slots) <= 1
    assert one.mem_fraction == info["mem_fraction_static"]
    assert near(one.kv_tokens, info["max_total_num_tokens"], 0.006)
    assert near(parts["weights"], boot.weight_gib * GIB)
    assert near(parts["states"], boot.state_gib * GIB, 0.03)
    assert near(parts["kv cache"], boot.kv_gib * GIB, 0.006)
    assert abs(one.free_bytes - boot.free_gib * GIB) < 1.25 * GIB  # an estimate
    assert abs(sum(parts.values()) - H200.memory_bytes) < 0.01 * GIB


@pytest.mark.parametrize("name", STARTED)
def test_with_measured_weights_slots_are_exact_and_cache_tokens_within_a_thousandth(name):
    start = Start(name)
    before, boot = start.boot.before_gib, start.boot
    one = budget(
        HYBRID,
        H200.memory_bytes,
        serving_of(start.flags),
        free_before=int(before * GIB),
        weights=int(boot.weight_gib * GIB),
    )
    assert near(one.kv_tokens, boot.kv_tokens, 0.0015)
    assert one.state_slots == boot.state_slots


def test_draft_weights_and_ring_are_predicted():
    mtp, replay = Start("mtp").boot, Start("mtp_replay")
    assert near(HYBRID.draft_weight_bytes, mtp.draft_weight_gib * GIB, 0.01)
    assert HYBRID.state is not None
    # The log: g 0.006, raw v 0.354, raw k 0.118, beta 0.006 GB, for 160 slots and the spare one.
    assert near(HYBRID.state.ring_bytes(4) * 161, 0.484 * GIB, 0.01)
    assert replay.boot.draft_weight_gib == mtp.draft_weight_gib


def test_a_start_that_failed_is_refused_with_the_cause_and_what_would_start():
    flags = Start("mtp_too_many").flags
    one = budget(HYBRID, H200.memory_bytes, serving_of(flags))
    assert not one.fits
    assert "scratch" in one.why
    assert one.running == 0
    found = lifts(HYBRID, H200.memory_bytes, serving_of(flags), tokens=512)
    assert any("--enable-linear-replayssm-spec" in lift.flags for lift in found)
    assert all(
        budget(HYBRID, H200.memory_bytes, serving_of((*flags, *lift.flags))).fits for lift in found
    )


def test_a_plain_transformer_is_predicted():
    start = Start("smol")
    one = budget(smol(), H200.memory_bytes, serving_of(()))
    assert near(one.kv_tokens, start.boot.kv_tokens, 0.001)
    assert (one.running, one.cap) == (4096, "estimate")
    assert (one.state_slots, one.slot_bytes) == (0, 0)
    assert one.mem_fraction == start.info["mem_fraction_static"]


def test_the_story_of_the_b200_comes_out_as_told():
    asked = ("--mamba-full-memory-ratio", "0.6", "--max-running-requests", "64")
    before = (*MTP, *asked, "--mem-fraction-static", "0.85", "--max-mamba-cache-size", "80")
    after = (*MTP, *asked, "--mem-fraction-static", "0.93", "--max-mamba-cache-size", "200")
    assert budget(HYBRID, B200.memory_bytes, serving_of(before)).running == 16
    one = budget(HYBRID, B200.memory_bytes, serving_of(after))
    assert (one.running, one.asked, one.cap) == (40, 64, "state")


def test_each_lift_gives_what_it_says():
    start = serving_of(Start("default").flags)
    found = lifts(HYBRID, H200.memory_bytes, start, tokens=512)
    assert found[0].flags[0] == "--disable-radix-cache"
    assert found[0].running > 256
    for lift in found:
        flags = (*Start("default").flags, *lift.flags)
        then = budget(HYBRID, H200.memory_bytes, serving_of(flags))
        assert usable(then, 512) == lift.running > 49
    assert [lift.changes_outputs for lift in found] == sorted(
        lift.changes_outputs for lift in found
    )
    assert "--mamba-ssm-dtype" in [
        flag for lift in found if lift.changes_outputs for flag in lift.flags
    ]


def test_a_start_that_was_reported_elsewhere_comes_out_as_reported():
    # SGLang 0.5.18, Qwen3.6-27B in FP8 on an H100 at 0.85: 28.47 GB of weights, 17.58 GB of
    # ssm_state (125 slots of 0.1406 GiB, one of them spare), capped to 24.
    shape = shape_of(config_of("27b") | {"quantization_config": {"quant_method": "fp8"}})
    assert near(shape.weight_bytes, 28.47 * GIB, 0.01)
    h100 = card_named("H100").memory_bytes
    serving = serving_of(("--mem-fraction-static", "0.85"))
    assert abs(budget(shape, h100, serving).state_slots - 124) <= 1
    one = budget(shape, h100, serving, weights=int(28.47 * GIB))
    assert (one.state_slots, one.running) == (124, 24)


def test_longer_requests_leave_room_for_fewer():
    serving = Serving(radix=False)
    short = most_running(HYBRID, H200.memory_bytes, serving, tokens=512)
    long = most_running(HYBRID, H200.memory_bytes, serving, tokens=16_384)
    assert 0 < long < short


def test_the_roofline_bounds_what_was_measured():
    # (flags, running, decode tokens/s in the best second)
    for name, running, best in (("default", 49, 2340), ("no_radix", 256, 5414)):
        roof = roofline(
            HYBRID,
            H200,
            serving_of(FLAGS[name]),
            running=running,
            prompt_tokens=256,
            output_tokens=256,
        )
        assert 0.55 < best / roof.decode_tokens_per_second < 0.75
        assert roof.bound == "memory"
    half = roofline(
        HYBRID,
        H200,
        serving_of(FLAGS["no_radix_bf16"]),
        running=448,
        prompt_tokens=256,
        output_tokens=256,
    )
    assert 0.4 < 6659 / half.decode_tokens_per_second < 0.75


@settings(max_examples=60)
@given(
    st.sampled_from([(), MTP, (*MTP, "--enable-linear-replayssm-spec")]),
    st.fixed_dictionaries(
        {
            "mem_fraction": st.floats(0.3, 0.97),
            "max_running": st.none() | st.integers(1, 2000),
            "radix": st.booleans(),
            "state_dtype": st.sampled_from([None, "bfloat16", "float32"]),
            "state_slots": st.none() | st.integers(1, 600),
        }
    ),
)
def test_whatever_the_flags_the_parts_never_exceed_the_card(mtp, chosen):
    serving = replace(serving_of(mtp), **chosen)
    one = budget(HYBRID, H200.memory_bytes, serving)
    assert one.running <= (serving.asked or 4096)
    if one.fits:
        assert one.running >= 1
        assert one.running * one.slots_per_request <= one.state_slots
        pools = sum(p.bytes for p in one.parts if p.name in {"states", "draft scratch", "kv cache"})
        assert pools <= one.pool_bytes
    else:
        assert one.why
        assert one.running == 0
