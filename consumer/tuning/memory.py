"""How SGLang divides a card's memory, and how many requests then run at once. Pure.

The order is the server's: weights; a reserve (1 - memory fraction) for graphs and activations;
of the rest the state pool of linear-attention layers, with what speculation needs beside it; then
the cache of keys and values takes all that is left. The formulas were read in 0.5.17 and hold from
0.5.10 to 0.5.23. tests/unit/test_tuning_memory.py checks them against boot logs: from a model's
config alone they give state slots to within one and cache tokens within 0.6 %, from measured
weights the slots exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumer.tuning.cards import GIB
from consumer.tuning.serving import prefill_graph_sizes

if TYPE_CHECKING:
    from consumer.tuning.model import ModelShape
    from consumer.tuning.serving import Serving

# Driver, CUDA context and libraries before the first weight: 140.40 GiB in all, 139.13 free (H200).
CONTEXT_BYTES = int(1.27 * GIB)
# Gone between the last weight and the first pool, as the sizes of the pools in the logs show.
SETTLED_BYTES = int(0.04 * GIB)
ESTIMATE_LEAST, ESTIMATE_MOST = 2048, 4096
ESTIMATE_FACTOR = 512
# Estimates, fitted to the boot logs: a decode graph's buffers for each request by vocabulary, a
# prefill graph's nodes for each layer, a chunk's states for each token.
_DECODE_GRAPH = 14.5
_PREFILL_NODE = 290_000
_CHUNK_STATES = 5 * 4 / 64


@dataclass(frozen=True, slots=True)
class Part:
    """One share of a card's memory."""

    name: str
    bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """A card's memory as a server would divide it.

    ``fits`` False: the start fails, and ``why`` says on what. ``cap``: what limits ``running``:
    ``asked``, ``state`` (slots of the state pool), ``kv`` (cache tokens) or ``estimate`` (the
    server's own limit where nothing is asked). ``free_bytes`` is an estimate.
    """

    fits: bool
    why: str
    running: int
    asked: int | None
    cap: str
    state_slots: int
    slots_per_request: int
    slot_bytes: int
    kv_tokens: int
    kv_token_bytes: float
    mem_fraction: float
    pool_bytes: int  # what state and cache share
    reserve_bytes: int  # kept out of the pools
    free_bytes: int  # of the reserve, after start: activations live here
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _States:
    """The state pool: slots, and the bytes of pool, ring and scratch."""

    slots: int
    pool: int
    scratch: int


def budget(
    shape: ModelShape,
    memory_bytes: int,
    serving: Serving,
    *,
    free_before: int | None = None,
    weights: int | None = None,
) -> Budget:
    """Return how a server with these settings divides a card.

    Args:
        shape: the model.
        memory_bytes: the card's whole memory, as NVML says it.
        serving: the flags; what they leave open is filled in.
        free_before: free memory before the weights, where it was measured.
        weights: bytes of the loaded target weights, where they were measured.
    """
    serving = serving.resolved(memory_bytes, shape)
    fraction = serving.mem_fraction or 0.0
    before = memory_bytes - CONTEXT_BYTES if free_before is None else free_before
    target = shape.weight_bytes if weights is None else weights
    draft = shape.draft_weight_bytes if serving.speculative else 0
    reserve = int(before * (1 - fraction))
    pool = before - target - draft - reserve - SETTLED_BYTES
    r = serving.slots_per_request
    slot = shape.state.slot_bytes(serving.state_dtype) if shape.state else 0
    states = _states(shape, serving, pool, slot)
    rest = pool - states.pool - states.scratch
    token = shape.kv_bytes(serving.kv_dtype)
    tokens = _tokens(rest, token, serving)
    running, cap = _running(serving, tokens, states.slots if shape.state else None, r)
    why = _why(pool, rest, running, shape, serving)
    outside = _outside(shape, serving, running, states.slots, tokens)
    free = reserve - outside + (shape.draft_shared_bytes if draft else 0)
    parts = (
        Part("context", memory_bytes - before, "driver, CUDA, libraries"),
        Part("weights", target),
        *_draft_parts(shape, draft),
        *_state_parts(states, shape, r),
        Part("kv cache", int(tokens * token), f"{tokens:,} tokens"),
        Part("graphs and buffers", outside + SETTLED_BYTES, "estimate"),
        Part("left free", max(0, free), "estimate; prefill works here"),
    )
    return Budget(
        fits=not why,
        why=why,
        running=0 if why else running,
        asked=serving.asked,
        cap=cap,
        state_slots=states.slots,
        slots_per_request=r,
        slot_bytes=slot,
        kv_tokens=max(0, tokens),
        kv_token_bytes=token,
        mem_fraction=fraction,
        pool_bytes=pool,
        reserve_bytes=reserve,
        free_bytes=free,
        parts=parts,
    )


def _states(shape: ModelShape, serving: Serving, pool: int, slot: int) -> _States:
    if shape.state is None:
        return _States(0, 0, 0)
    drafts, r = serving.drafts, serving.slots_per_request
    ring = shape.state.ring_bytes(drafts) if drafts and serving.replay else 0
    scratch_each = drafts * slot if drafts and not serving.replay else 0
    share = pool * serving.state_ratio / (1 + serving.state_ratio)
    if serving.state_slots is not None:
        slots = serving.state_slots
    elif not serving.radix and serving.asked is not None:
        slots = serving.asked
    elif scratch_each:
        slots = int((share - slot - scratch_each) / (slot + scratch_each / r))
    else:
        slots = int(share // (slot + ring)) - 1
    slots = max(0, slots)
    requests = slots // r
    if serving.asked is not None:
        requests = min(serving.asked, requests)
    # One slot more than counted: the first is never given out.
    return _States(slots, (slots + 1) * (slot + ring), (requests + 1) * scratch_each)


def _tokens(rest: int, token: float, serving: Serving) -> int:
    tokens = int(rest / token) if rest > 0 else 0
    if serving.max_total_tokens is not None:
        tokens = min(tokens, serving.max_total_tokens)
    return tokens // serving.page_size * serving.page_size


def _running(serving: Serving, tokens: int, slots: int | None, r: int) -> tuple[int, str]:
    """Return the running requests, and what limits them."""
    context = max(1, serving.context or 1)
    estimate = int(tokens / context * ESTIMATE_FACTOR)
    limits = [(tokens // 2, "kv")]
    if serving.asked is not None:
        limits.append((serving.asked, "asked"))
    else:
        limits.append((min(ESTIMATE_MOST, max(ESTIMATE_LEAST, estimate)), "estimate"))
    if slots is not None:
        limits.append((slots // r, "state"))
    # Where asking and slots agree, asking is the cause: radix off makes as many slots as asked.
    order = {"asked": 0, "estimate": 1, "state": 2, "kv": 3}
    return min(limits, key=lambda limit: (limit[0], order[limit[1]]))


def _why(pool: int, rest: int, running: int, shape: ModelShape, serving: Serving) -> str:
    if pool <= 0:
        return "the weights leave nothing of the memory fraction"
    if rest <= 0:
        scratch = " and speculation's scratch" if serving.drafts and not serving.replay else ""
        return f"the states{scratch} leave nothing for the cache"
    if running < 1:
        return "the state pool serves no request" if shape.state else "the cache holds no request"
    return ""


def _graphs(shape: ModelShape, serving: Serving, running: int) -> int:
    batch = min(serving.graph_batch or 0, running)
    total = 0.0
    if serving.decode_graphs:
        # A verification holds every draft token's logits, and the draft has graphs of its own.
        total += _DECODE_GRAPH * shape.vocab_size * batch * (1 + serving.drafts)
    chunk = serving.chunk_tokens or 0
    if serving.prefill_graphs and chunk > 0:
        total += _PREFILL_NODE * shape.layers * prefill_graph_sizes(chunk)
        if shape.state:
            each = shape.state.values / shape.state.layers
            total += _CHUNK_STATES * each * chunk
    return int(total)


def _outside(shape: ModelShape, serving: Serving, running: int, slots: int, tokens: int) -> int:
    """Return what is taken from the reserve: graphs, and the table of requests.

    With speculation that is also the draft layer's cache and the verification's windows.
    """
    table = running * (serving.context or 0) * 4 + _graphs(shape, serving, running)
    if not serving.speculative:
        return table
    requests = slots if serving.replay else running
    windows = 0
    if shape.state:
        kernel = shape.state.conv_kernel - 1
        windows = (requests + 1) * shape.state.conv_bytes * (kernel + serving.drafts - 1) // kernel
    cache = int(
        tokens * shape.draft_kv_values * (shape.kv_bytes(serving.kv_dtype) / shape.kv_values)
    )
    return table + windows + cache


def _draft_parts(shape: ModelShape, draft: int) -> tuple[Part, ...]:
    """The draft's copies of embedding and head are given back once it shares the target's."""
    if not draft:
        return ()
    note = f"MTP layer; {shape.draft_shared_bytes / GIB:.1f} GiB more at start"
    return (Part("draft weights", draft - shape.draft_shared_bytes, note),)


def _state_parts(states: _States, shape: ModelShape, r: int) -> tuple[Part, ...]:
    if shape.state is None:
        return ()
    each = f"{states.slots:,} slots, {r} a request"
    parts = [Part("states", states.pool, each)]
    if states.scratch:
        parts.append(Part("draft scratch", states.scratch, "a state for each draft token"))
    return tuple(parts)
