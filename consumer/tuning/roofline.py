"""The most tokens a second that a card could give a model: bytes moved, and matrix work. Pure.

One decode step reads every weight once (of experts, those that the batch asks for), reads and
writes each running request's state, and reads its cache. Prefill is matrix work. The larger of
memory time and arithmetic time is the step's. Real servers reach 0.6 to 0.7 of it in their best
second (27B hybrid, H200: 5,414 tokens/s of 8,400 with 256 running).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumer.tuning.cards import Card
    from consumer.tuning.model import ModelShape
    from consumer.tuning.serving import Serving

# Tokens that a verification yields where nothing was measured (three draft steps, one choice).
ASSUMED_ACCEPT_LENGTH = 2.8


@dataclass(frozen=True, slots=True)
class Roofline:
    """A bound, not a forecast. ``decode_tokens_per_second`` leaves the prompts' prefill out."""

    running: int
    tokens_per_second: float  # output tokens, the prompts' prefill counted
    decode_tokens_per_second: float
    step_seconds: float
    weight_bytes: float  # moved in one step
    state_bytes: float
    kv_bytes: float
    flops: float  # of one step
    bound: str  # "memory" or "compute"


def roofline(
    shape: ModelShape,
    card: Card,
    serving: Serving,
    *,
    running: int,
    prompt_tokens: int,
    output_tokens: int,
    accept_length: float | None = None,
) -> Roofline:
    """Return the bound for so many running requests of such lengths.

    Args:
        shape: the model.
        card: the GPU.
        serving: its flags; only state and cache types, and speculation, matter.
        running: requests in each step.
        prompt_tokens: of a request, on average.
        output_tokens: of a request, on average, 1 at least.
        accept_length: tokens that a verification yields; None: an assumption with speculation.
    """
    running = max(1, running)
    drafts = serving.drafts
    yielded = (accept_length or ASSUMED_ACCEPT_LENGTH) if drafts else 1.0
    tokens = running * max(1, drafts)
    weights = _step_weights(shape, tokens)
    weights += shape.draft_step_bytes * serving.draft_steps if drafts else 0
    state = 0.0
    if shape.state:
        slot = shape.state.slot_bytes(serving.state_dtype)
        # Read once, written once; with scratch, written for every draft token.
        writes = drafts if drafts and not serving.replay else 1
        state = float(running * slot * (1 + writes))
    length = prompt_tokens + output_tokens / 2
    kv = running * length * shape.kv_bytes(serving.kv_dtype)
    flops = 2.0 * shape.active_parameters * tokens
    moving, working = (weights + state + kv) / card.bandwidth, flops / card.flops
    step = max(moving, working)
    decode = running * yielded / step
    # An output token pays its share of the prompt's prefill, at the card's peak.
    prefill = 2.0 * shape.active_parameters * prompt_tokens / max(1, output_tokens) / card.flops
    return Roofline(
        running=running,
        tokens_per_second=1 / (1 / decode + prefill),
        decode_tokens_per_second=decode,
        step_seconds=step,
        weight_bytes=weights,
        state_bytes=state,
        kv_bytes=kv,
        flops=flops,
        bound="memory" if moving >= working else "compute",
    )


def _step_weights(shape: ModelShape, tokens: int) -> float:
    """Return the weights that a step reads: more tokens ask for more of the experts."""
    every, one = shape.expert_step_bytes, shape.step_bytes
    if every <= one:
        return float(one)
    # Each token asks for a share of the experts by chance; none is read twice.
    missed = (1 - one / every) ** tokens
    return every * (1 - missed)
