"""Flags, their defaults, and cards, as a server would take them."""

from __future__ import annotations

import pytest

from common.errors import UsageError
from consumer.tuning.cards import CARDS, GIB, card_named, card_of_size
from consumer.tuning.serving import Serving, prefill_graph_sizes, serving_of
from tests.support.boots import hybrid, smol

HYBRID = hybrid()
H200 = card_named("H200")
B200 = card_named("B200")


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
