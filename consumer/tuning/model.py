"""What a model weighs: its config.json as bytes of weights, of a token's cache and of a state.

Layers of three kinds are understood: full attention (grouped, or MLA), gated linear attention with
a state (Qwen3-Next, Qwen3.5, Qwen3.6), and MLPs, dense or of experts. Anything else is refused
rather than guessed. Weights are counted from the shapes; where the checkpoint's own sum is known
(its safetensors index) that is taken instead. Checked against the boot logs of real servers:
tests/unit/test_tuning_memory.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from common.errors import UsageError
from common.model import locate_model, model_name
from consumer.tuning.weights import Counts, count_weights, full_layers, linear_layers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DTYPE_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "float8_e4m3fn": 1.0,
}


@dataclass(frozen=True, slots=True)
class StateShape:
    """What one slot of the state pool holds: a request's recurrent state in every linear layer."""

    layers: int
    conv_bytes: int  # of all layers; always two bytes a value
    conv_kernel: int
    values: int  # numbers of the recurrent state, all layers
    key_values: int  # key heads x key dim of one layer
    value_values: int  # value heads x value dim of one layer
    value_heads: int
    dtype: str  # as the model asks

    def slot_bytes(self, dtype: str | None = None) -> int:
        """Return the bytes of a slot, its state kept as ``dtype`` (None: as the model asks)."""
        return self.conv_bytes + int(self.values * DTYPE_BYTES[dtype or self.dtype])

    def ring_bytes(self, records: int) -> int:
        """Return the bytes of a slot's replay ring for so many draft tokens.

        Keys and raw values as two bytes a number, gate and beta as four a head (boot log of
        0.5.17 with --enable-linear-replayssm-spec: 0.48 GiB for 161 slots and 4 records).
        """
        numbers = (self.key_values + self.value_values) * 2 + self.value_heads * 8
        return self.layers * records * numbers


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as far as memory and speed go. Made by :func:`shape_of`."""

    name: str
    family: str  # model_type of its text part
    parameters: int  # of the text model, without draft and vision
    weight_bytes: int  # as loaded: vision included, draft left out
    vision_bytes: int
    draft_weight_bytes: int  # of the MTP layer as loaded; 0 where there is none
    draft_shared_bytes: int  # of it, given back once it shares embedding and head
    step_bytes: int  # weights that a step reads for one token
    expert_step_bytes: int  # of all experts: what a step reads when every one of them is asked
    draft_step_bytes: int
    active_parameters: int  # that one token multiplies with
    layers: int
    kv_values: int  # numbers that a token keeps in the cache
    draft_kv_values: int
    state: StateShape | None
    context_tokens: int
    vocab_size: int
    vision_complexity: int  # vision layers x width^2; SGLang lowers its memory fraction by it
    notes: tuple[str, ...] = ()

    def kv_bytes(self, dtype: str = "auto") -> float:
        """Return the bytes of a token in the cache."""
        return self.kv_values * DTYPE_BYTES.get(dtype, 2.0)


def shape_of(
    config: Mapping[str, Any], *, name: str = "", stored_bytes: int | None = None
) -> ModelShape:
    """Return the shape that a config.json describes.

    Args:
        config: the whole file; a text part below ``text_config`` is found.
        name: what the model is called in messages.
        stored_bytes: the sum of the checkpoint's tensors, where it is known.

    Raises:
        UsageError: the model has parts that are not understood, or numbers are missing.
    """
    text: Mapping[str, Any] = config.get("text_config") or config
    try:
        counts = count_weights(text, config, stored=stored_bytes is not None)
        shape = _shape(text, counts, name or str(config.get("_name_or_path", "")))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"The config.json of {name or 'the model'} is not understood.",
            why=f"{type(error).__name__}: {error}",
            fix="Start it and read `gen-producer status`; the arithmetic knows full attention,"
            " MLA, experts, and the linear layers of Qwen3-Next, 3.5 and 3.6.",
        ) from error
    if stored_bytes is None:
        return shape
    # The checkpoint holds the MTP layer too, without a second embedding and head.
    own = shape.draft_weight_bytes - shape.draft_shared_bytes
    return _scaled(shape, max(1, stored_bytes - own))


def read_shape(model: str) -> ModelShape:
    """Return the shape of a model's folder. Reads its config.json and safetensors index.

    Raises:
        UsageError: the folder or its config.json is not there, or not understood.
    """
    folder = locate_model(model)
    path = folder / "config.json" if folder is not None else None
    if folder is None or path is None or not path.is_file():
        raise UsageError(
            f"There is no config.json at {model}.",
            why="The sizes of the model's layers are read from it.",
            fix="Give the model's folder in Hugging Face layout with --model.",
        )
    try:
        config = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read.", why=str(error)) from error
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not an object.", why="A config.json holds names and values.")
    return shape_of(config, name=model_name(model), stored_bytes=_stored_bytes(folder))


def _stored_bytes(folder: Path) -> int | None:
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            return int(orjson.loads(index.read_bytes())["metadata"]["total_size"])
        single = folder / "model.safetensors"
        return single.stat().st_size if single.is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _shape(text: Mapping[str, Any], counts: Counts, name: str) -> ModelShape:
    size = counts.dtype_bytes
    body = counts.layer_bytes
    lookup = int(counts.embedding * size)
    head = int(counts.embedding * size)
    loaded = lookup + (0 if counts.tied else head) + body + counts.vision_bytes
    draft_own = int(counts.draft * size)
    shared = 2 * lookup if counts.draft else 0
    notes = []
    if counts.sliding:
        notes.append("sliding-window layers are counted as full ones: more tokens fit than shown")
    shape = ModelShape(
        name=name,
        family=str(text.get("model_type", "")),
        parameters=counts.embedding * (1 if counts.tied else 2) + counts.layers,
        weight_bytes=loaded,
        vision_bytes=counts.vision_bytes,
        draft_weight_bytes=draft_own + shared,
        draft_shared_bytes=shared,
        step_bytes=head + counts.active_bytes,
        expert_step_bytes=head + body,
        draft_step_bytes=(draft_own + head) if counts.draft else 0,
        active_parameters=counts.embedding + counts.active,
        layers=int(text["num_hidden_layers"]),
        kv_values=len(full_layers(text)) * counts.kv_values,
        draft_kv_values=counts.draft_layers * counts.kv_values,
        state=_state(text),
        context_tokens=int(text.get("max_position_embeddings", 0)),
        vocab_size=int(text["vocab_size"]),
        vision_complexity=counts.vision_complexity,
        notes=tuple(notes),
    )
    _refuse_impossible(shape)
    return shape


def _refuse_impossible(shape: ModelShape) -> None:
    state = shape.state
    sizes = [shape.weight_bytes, shape.active_parameters, shape.layers, shape.kv_values]
    sizes += [shape.vocab_size, shape.parameters, shape.step_bytes]
    if state is not None:
        sizes += [state.values, state.conv_bytes, state.key_values, state.conv_kernel - 1]
    least = [shape.context_tokens, shape.vision_bytes, shape.draft_weight_bytes]
    if min(sizes) <= 0 or min(least) < 0:
        raise ValueError("a size in it is zero or less")


def _state(text: Mapping[str, Any]) -> StateShape | None:
    layers = len(linear_layers(text))
    if not layers:
        return None
    keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
    value_heads, value_dim = int(text["linear_num_value_heads"]), int(text["linear_value_head_dim"])
    kernel = int(text["linear_conv_kernel_dim"])
    dtype = str(text.get("mamba_ssm_dtype") or "float32").removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"its states are kept as {dtype}")
    values = value_heads * value_dim
    return StateShape(
        layers=layers,
        conv_bytes=layers * (2 * keys + values) * (kernel - 1) * 2,
        conv_kernel=kernel,
        values=layers * value_heads * int(text["linear_key_head_dim"]) * value_dim,
        key_values=keys,
        value_values=values,
        value_heads=value_heads,
        dtype=dtype,
    )


def _scaled(shape: ModelShape, weight_bytes: int) -> ModelShape:
    """Return the shape with the checkpoint's own weight; what a step reads goes with it."""
    share = weight_bytes / shape.weight_bytes
    return replace(
        shape,
        weight_bytes=weight_bytes,
        step_bytes=int(shape.step_bytes * share),
        expert_step_bytes=int(shape.expert_step_bytes * share),
    )
