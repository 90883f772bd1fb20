"""The arithmetic against starts of real servers, and what must hold whatever the flags."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UsageError
from consumer.tuning.cards import CARDS, GIB, card_named, card_of_size
from consumer.tuning.lifts import lifts, most_running, usable
from consumer.tuning.memory import budget
from consumer.tuning.model import read_shape, shape_of
from consumer.tuning.roofline import roofline
from consumer.tuning.serving import Serving, prefill_graph_sizes, serving_of
from tests.support.boots import FLAGS, MTP, Start, config_of, hybrid, smol

HYBRID = hybrid()
H200 = card_named("H200")
B200 = card_named("B200")
STARTED = sorted(set(FLAGS) - {"mtp_too_many"})


def near(predicted: float, seen: float, share: float = 0.03) -> bool:
    return abs(predicted - seen) <= share * seen


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


def test_experts_are_counted_and_read_by_the_batch():
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 40960,
    }
    shape = shape_of(config)
    assert near(shape.parameters, 30.5e9, 0.01)  # Qwen3-30B-A3B, by its card
    assert near(shape.active_parameters, 3.3e9, 0.1)
    few, many = (
        roofline(shape, H200, Serving(), running=n, prompt_tokens=1, output_tokens=1)
        for n in (1, 512)
    )
    assert few.weight_bytes < 0.2 * many.weight_bytes
    assert many.weight_bytes <= shape.expert_step_bytes


def test_latent_attention_is_counted():
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "vocab_size": 129280,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8"},
    }
    shape = shape_of(config)
    assert near(shape.parameters, 671e9, 0.01)
    assert near(shape.active_parameters, 37e9, 0.05)
    assert shape.kv_values == 61 * 576
    assert near(shape.weight_bytes, 671e9 + 2 * 129280 * 7168, 0.01)  # fp8, but the embeddings


def test_dense_models_have_the_parameters_on_their_cards():
    llama = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    }
    shape = shape_of(llama)
    assert near(shape.parameters, 8.03e9, 0.002)
    assert shape.kv_bytes() == 131_072
    assert shape.kv_bytes("fp8_e4m3") == 65_536


@pytest.mark.parametrize(
    ("packing", "bytes_each"),
    [
        ({"quant_method": "awq", "bits": 4}, 4.25 / 8),
        ({"quant_method": "gptq", "bits": 8}, 1),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.25 / 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.25 / 8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8}}},
            },
            1,
        ),
    ],
)
def test_packed_weights_are_counted_by_their_bits(packing, bytes_each):
    plain = smol()
    packed = shape_of(config_of("smol") | {"quantization_config": packing})
    layers = plain.parameters - 49152 * 576
    assert near(plain.weight_bytes - packed.weight_bytes, layers * (2 - bytes_each), 0.001)
    assert packed.kv_bytes() == plain.kv_bytes()


def test_an_unknown_packing_is_no_matter_where_the_sum_is_known():
    config = config_of("smol") | {"quantization_config": {"quant_method": "of tomorrow"}}
    assert shape_of(config, stored_bytes=123_456_789).weight_bytes == 123_456_789


def test_the_checkpoint_s_own_sum_wins(tmp_path):
    (tmp_path / "config.json").write_bytes(orjson.dumps(config_of("smol")))
    (tmp_path / "model.safetensors.index.json").write_bytes(
        orjson.dumps({"metadata": {"total_size": 300_000_000}, "weight_map": {}})
    )
    assert read_shape(str(tmp_path)).weight_bytes == 300_000_000
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert near(read_shape(str(tmp_path)).weight_bytes, 269_060_552, 0.001)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["mamba"] * 30},
        {"mamba_d_state": 16},
        {"hidden_size": None},
        {"num_attention_heads": 0},
        {"quantization_config": {"quant_method": "of tomorrow"}},
    ],
)
def test_what_is_not_understood_is_refused(change):
    with pytest.raises(UsageError, match="not understood"):
        shape_of(config_of("smol") | change)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_config_raises_anything_but_a_refusal(data):
    config = config_of("27b")
    for part in (config, config["text_config"], config["vision_config"]):
        for name in data.draw(st.lists(st.sampled_from(sorted(part)), max_size=2)):
            part[name] = data.draw(JSON)
    config["quantization_config"] = data.draw(
        st.none() | JSON | st.fixed_dictionaries({"config_groups": JSON, "bits": JSON})
    )
    try:
        shape = shape_of(config)
    except UsageError:
        return
    assert budget(shape, H200.memory_bytes, Serving()).running >= 0


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"no config\.json"):
        read_shape(str(tmp_path / "nothing"))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UsageError, match="not an object"):
        read_shape(str(tmp_path))


def test_flags_are_read_in_both_spellings_and_the_last_wins():
    serving = serving_of(
        ("--cuda-graph-max-bs=64", "--mem-fraction-static", "0.8", "--mem-fraction-static=0.9")
    )
    assert (serving.graph_batch, serving.mem_fraction) == (64, 0.9)
    assert serving_of(("--made-up", "3", "--tp-size=1")).unknown == ("--made-up", "--tp-size")
    for flags in (
        ("--mem-fraction-static", "1.5"),
        ("--max-running-requests",),
        ("--page-size", "x"),
    ):
        with pytest.raises(UsageError, match=flags[0]):
            serving_of(flags)
    with pytest.raises(UsageError, match="extra_buffer_lazy"):
        serving_of(("--mamba-scheduler-strategy", "lazy"))


def test_slots_a_request_follow_strategy_radix_and_overlap():
    cases = {
        (): 5,
        ("--disable-overlap-schedule",): 3,  # auto becomes no_buffer
        ("--mamba-radix-cache-strategy", "extra_buffer_lazy"): 4,
        ("--mamba-radix-cache-strategy", "extra_buffer", "--disable-overlap-schedule"): 4,
        ("--mamba-radix-cache-strategy", "no_buffer"): 3,
        ("--disable-radix-cache",): 1,
    }
    assert {flags: serving_of(flags).slots_per_request for flags in cases} == cases


def test_defaults_by_card():
    sizes = {(c.name): Serving(text_only=True).resolved(c.memory_bytes, smol()) for c in CARDS}
    assert sizes["H200"].mem_fraction == 0.903
    assert (sizes["B200"].chunk_tokens, sizes["B200"].graph_batch) == (16384, 512)
    assert (sizes["L4"].chunk_tokens, sizes["L4"].graph_batch) == (2048, 24)
    assert all(0.7 < (one.mem_fraction or 0) < 0.95 for one in sizes.values())
    assert prefill_graph_sizes(8192) == 58  # as the log counts them
    # A vision tower asks for room, unless only text is sent.
    assert Serving().resolved(H200.memory_bytes, HYBRID).mem_fraction == 0.835


def test_cards_are_known_by_any_of_their_names():
    names = {
        "NVIDIA H200": "H200",
        "h100": "H100",
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H100 PCIe": "H100 PCIe",
        "NVIDIA A100-SXM4-40GB": "A100 40GB",
        "NVIDIA A100 80GB PCIe": "A100 PCIe 80GB",
        "NVIDIA L40S": "L40S",
        "NVIDIA GeForce RTX 4090": "RTX 4090",
    }
    assert {name: card_named(name).name for name in names} == names
    assert card_named("Tesla T4") is None
    assert card_of_size(141 * GIB).name == "H200"
    assert card_of_size(80 * GIB) is None  # H100 and A100 have as much


@settings(max_examples=60, deadline=None)
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
