"""Counting a model's weights, layer by layer, from the numbers in its config.json. Pure.

Norms and biases are left out: together they are less than a thousandth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_FULL = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
_LINEAR = {"linear_attention"}
# Configs with these keys have layers of other kinds, which would be counted wrongly.
_FOREIGN = (
    *("mamba_num_heads", "mamba_d_state", "ssm_state_size", "linear_attn_config"),
    *("hybrid_override_pattern", "lru_width", "attn_layer_indices", "rwkv_hidden_size"),
)
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
_BITS = 8


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of weights, in parameters unless a name says bytes."""

    embedding: int
    tied: bool
    layers: int  # all layers together, every expert
    active: int  # of these, what one token multiplies with
    layer_bytes: int
    active_bytes: int
    dtype_bytes: float  # of what is not quantised
    kv_values: int  # numbers that one full-attention layer keeps of a token
    draft: int  # the MTP layers, without embedding and head
    draft_layers: int
    vision_bytes: int
    vision_complexity: int
    sliding: bool


def full_layers(text: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the layers that keep keys and values."""
    return [n for n, kind in enumerate(_kinds(text)) if kind in _FULL]


def linear_layers(text: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the layers that keep a state."""
    return [n for n, kind in enumerate(_kinds(text)) if kind in _LINEAR]


def count_weights(
    text: Mapping[str, Any], config: Mapping[str, Any], *, stored: bool = False
) -> Counts:
    """Count a model's weights.

    Args:
        text: the config's text part.
        config: the whole.
        stored: the checkpoint's own sum is known, so that an unknown packing is no matter.

    Raises:
        KeyError, TypeError, ValueError: a number is missing, or there are layers of other kinds.
    """
    for key in _FOREIGN:
        if text.get(key):
            raise ValueError(f"it has layers of another kind ({key})")
    hidden = int(text["hidden_size"])
    kinds = _kinds(text)
    attention, kv_values = _attention(text, hidden)
    total = active = 0
    for number, kind in enumerate(kinds):
        mixer = _linear(text, hidden) if kind in _LINEAR else attention
        every, one = _mlp(text, hidden, number)
        total += mixer + every
        active += mixer + one
    drafts = int(text.get("mtp_num_hidden_layers") or text.get("num_nextn_predict_layers") or 0)
    # An MTP layer: full attention, an MLP as the last layer's, and a projection of two states.
    draft = drafts * (attention + _mlp(text, hidden, len(kinds) - 1)[0]) + 2 * hidden**2 * min(
        drafts, 1
    )
    dtype = _dtype_bytes(text, config)
    try:
        packed = _packed_bytes(config) or _packed_bytes(text) or dtype
    except ValueError:
        if not stored:
            raise
        packed = dtype
    vision, complexity = _vision(config)
    return Counts(
        embedding=int(text["vocab_size"]) * hidden,
        tied=_tied(text, config),
        layers=total,
        active=active,
        layer_bytes=int(total * packed),
        active_bytes=int(active * packed),
        dtype_bytes=dtype,
        kv_values=kv_values,
        draft=draft,
        draft_layers=drafts,
        vision_bytes=vision,
        vision_complexity=complexity,
        sliding="sliding_attention" in kinds or bool(text.get("use_sliding_window")),
    )


def _kinds(text: Mapping[str, Any]) -> list[str]:
    layers = int(text["num_hidden_layers"])
    given = text.get("layer_types") or text.get("layers_block_type")
    if given:
        kinds = [str(kind) for kind in given]
        unknown = sorted(set(kinds) - _FULL - _LINEAR)
        if unknown:
            raise ValueError(f"it has layers of another kind ({', '.join(unknown)})")
        return kinds
    if not text.get("linear_num_value_heads"):
        return ["full_attention"] * layers
    every = int(text.get("full_attention_interval", 4))
    return ["full_attention" if (n + 1) % every == 0 else "linear_attention" for n in range(layers)]


def _attention(text: Mapping[str, Any], hidden: int) -> tuple[int, int]:
    """Return an attention layer's weights, and the numbers that it keeps of a token."""
    heads = int(text["num_attention_heads"])
    if text.get("kv_lora_rank"):
        return _latent(text, hidden, heads)
    head_dim = int(text.get("head_dim") or hidden // heads)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    queries = hidden * heads * head_dim * (2 if text.get("attn_output_gate") else 1)
    return queries + 2 * hidden * kv_heads * head_dim + heads * head_dim * hidden, (
        2 * kv_heads * head_dim
    )


def _latent(text: Mapping[str, Any], hidden: int, heads: int) -> tuple[int, int]:
    """MLA (DeepSeek-V2 and later): one compressed vector and a rotary part a token."""
    rank, rotary = int(text["kv_lora_rank"]), int(text["qk_rope_head_dim"])
    plain, value = int(text["qk_nope_head_dim"]), int(text["v_head_dim"])
    width = heads * (plain + rotary)
    low = int(text.get("q_lora_rank") or 0)
    queries = low * (hidden + width) if low else hidden * width
    keys = hidden * (rank + rotary) + rank * heads * (plain + value)
    return queries + keys + heads * value * hidden, rank + rotary


def _linear(text: Mapping[str, Any], hidden: int) -> int:
    keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
    heads = int(text["linear_num_value_heads"])
    values = heads * int(text["linear_value_head_dim"])
    conv = (2 * keys + values) * int(text["linear_conv_kernel_dim"])
    return hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden + conv


def _mlp(text: Mapping[str, Any], hidden: int, layer: int) -> tuple[int, int]:
    """Return a layer's MLP weights: all of them, and those that one token uses."""
    experts = next((int(text[name]) for name in _EXPERTS if text.get(name)), 0)
    dense = 3 * hidden * int(text.get("intermediate_size") or 0)
    if not experts or _is_dense(text, layer):
        return dense, dense
    width = int(text.get("moe_intermediate_size") or text["intermediate_size"])
    one = 3 * hidden * width
    shared = 3 * hidden * int(text.get("shared_expert_intermediate_size") or 0)
    shared += one * int(text.get("n_shared_experts") or 0)
    always = shared + hidden * experts
    return experts * one + always, int(text["num_experts_per_tok"]) * one + always


def _is_dense(text: Mapping[str, Any], layer: int) -> bool:
    if layer in (text.get("mlp_only_layers") or ()) or layer < int(
        text.get("first_k_dense_replace") or 0
    ):
        return True
    return (layer + 1) % int(text.get("decoder_sparse_step") or 1) != 0


def _tied(text: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    for holder in (text, config):
        if "tie_word_embeddings" in holder:
            return bool(holder["tie_word_embeddings"])
    return str(text.get("model_type", "")).startswith("gemma")  # there it is the default


def _dtype_bytes(text: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    for holder in (text, config):
        dtype = holder.get("dtype") or holder.get("torch_dtype")
        if dtype:
            return 4.0 if "32" in str(dtype) else 2.0
    return 2.0


def _packed_bytes(config: Mapping[str, Any]) -> float | None:
    """Return the bytes of a quantised weight, None where nothing is quantised.

    Raises:
        ValueError: they are packed in a way that is not known here.
    """
    quantised = config.get("quantization_config")
    if not isinstance(quantised, dict):
        return None
    method = str(quantised.get("quant_method", ""))
    algorithm = (method + str(quantised.get("quant_algo", ""))).lower()
    if "fp4" in algorithm or quantised.get("load_in_4bit"):
        return 4.25 / _BITS  # four bits, and a scale of eight for every 32
    if "fp8" in algorithm or quantised.get("load_in_8bit"):
        return 1.0
    bits = quantised.get("bits")
    for group in dict(quantised.get("config_groups") or {}).values():  # compressed-tensors
        bits = bits or (group.get("weights") or {}).get("num_bits")
    if bits is None:
        raise ValueError(f"its weights are packed in a way not known here ({method or 'unnamed'})")
    # Below eight bits there are scales of 16 bits and zero points, for groups of 128.
    return (float(bits) + (0.25 if float(bits) < _BITS else 0.0)) / _BITS


def _vision(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return a vision tower's bytes, and SGLang's measure of its size (layers x width^2).

    SGLang takes 24 layers where the config calls their number otherwise, as Qwen's do ("depth").
    """
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return 0, 0
    depth = int(vision.get("depth") or vision.get("num_hidden_layers") or 0)
    width = int(vision.get("hidden_size") or vision.get("embed_dim") or 0)
    inner = int(vision.get("intermediate_size") or 4 * width)
    merged = width * int(vision.get("spatial_merge_size") or 1) ** 2
    out = int(vision.get("out_hidden_size") or 0)
    patch = int(vision.get("patch_size") or 0) ** 2 * int(vision.get("temporal_patch_size") or 1)
    places = int(vision.get("num_position_embeddings") or 0)
    layers = depth * (4 * width**2 + 2 * width * inner)
    rest = merged * (merged + out) + width * (3 * patch + places)
    measured = (
        int(vision.get("num_hidden_layers") or 24) * int(vision.get("hidden_size") or 1024) ** 2
    )
    return int((layers + rest) * 2), measured
