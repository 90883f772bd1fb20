"""What a config.json says of a model: its parameters, its caches, and what is refused."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UsageError
from consumer.tuning.cards import card_named
from consumer.tuning.memory import budget
from consumer.tuning.model import read_shape, shape_of
from consumer.tuning.roofline import roofline
from consumer.tuning.serving import Serving
from tests.support.boots import config_of, near, smol

H200 = card_named("H200")


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


@settings(max_examples=60)
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
