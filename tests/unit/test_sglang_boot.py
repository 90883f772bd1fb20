"""What a start says of its size is read as it was, whatever else stands in its log."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import EngineError
from consumer.engine.sglang_boot import GIB, Boot, boot_of_log, capacity_of, read_boot
from consumer.engine.sglang_flags import CHANGES, flags_for, newest_name, version_tuple
from tests.support.boots import BOOT, FLAGS, Start

# running, state slots, slots a request, cache tokens, GiB free
SEEN = {
    "default": (49, 245, 5, 643_305, 10.20),
    "ratio": (77, 388, 5, 307_398, 10.13),
    "no_radix": (256, 256, None, 617_466, 9.33),
    "no_radix_large": (320, 320, None, 528_193, 8.12),
    "no_radix_bf16": (448, 448, None, 744_769, 7.52),
    "mtp": (24, 123, 5, 603_879, 12.42),
    "mtp_replay": (160, 160, None, 743_957, 7.68),
    "smol": (4096, None, None, 5_842_101, 12.31),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_boot_log_tells_effective_sizes(name):
    boot = Start(name).boot
    assert SEEN[name] == (
        *(boot.running, boot.state_slots, boot.slots_per_request, boot.kv_tokens, boot.free_gib),
    )
    assert bool(boot.capped) == (boot.slots_per_request is not None)
    assert (boot.draft_weight_gib is not None) == name.startswith("mtp")


def test_a_start_that_failed_has_said_only_its_weights():
    boot = Start("mtp_too_many").boot
    assert (boot.weight_gib, boot.draft_weight_gib) == (51.05, 5.53)
    assert boot.kv_tokens is None


@pytest.mark.parametrize("name", sorted(set(FLAGS) - {"mtp_too_many"}))
def test_requested_and_effective_are_told_apart(name):
    start = Start(name)
    with_log = capacity_of(start.info, start.boot)
    without = capacity_of(start.info, Boot())
    asked = {"default": None, "ratio": 256, "mtp": 48}
    assert with_log.asked_running == asked.get(name, start.running)
    assert with_log.state_slots == without.state_slots == start.boot.state_slots
    assert with_log.slots_per_request == without.slots_per_request
    assert with_log.kv_tokens == without.kv_tokens == start.boot.kv_tokens
    assert without.free_bytes == pytest.approx(start.boot.free_gib * GIB, rel=0.001)
    assert without.mem_fraction == start.info["mem_fraction_static"]
    assert start.running == min(
        with_log.asked_running or 4096, with_log.state_slots // with_log.slots_per_request
    )


def test_an_answer_with_nothing_in_it_is_no_error():
    assert capacity_of({}, Boot()).asked_running is None
    assert (
        capacity_of({"internal_states": [{"max_mamba_cache_size": 10}]}, Boot()).state_slots == 10
    )


def test_only_the_last_start_of_a_log_counts(tmp_path):
    log = tmp_path / "gpu0.log"
    first, second = ((BOOT / f"{name}.log").read_text() for name in ("default", "no_radix"))
    log.write_text(first + second)
    assert boot_of_log(log) == Start("no_radix").boot
    assert boot_of_log(tmp_path / "nothing.log") == Boot()


@given(st.lists(st.text(max_size=80), max_size=10))
def test_no_text_breaks_the_reader(lines):
    with contextlib.suppress(StopIteration):
        read_boot(lines)


def test_flags_go_to_each_release_under_its_names():
    newest = (
        *("--mamba-radix-cache-strategy", "no_buffer", "--language-model-only"),
        *("--prefill-decode-interval", "3", "--cuda-graph-max-bs-decode=320"),
    )
    assert flags_for("0.5.23", newest) == newest
    assert flags_for("0.5.17", newest) == (
        *("--mamba-radix-cache-strategy", "no_buffer", "--cuda-graph-max-bs-decode=320"),
    )
    assert flags_for("0.5.10", newest) == (
        *("--mamba-scheduler-strategy", "no_buffer", "--cuda-graph-max-bs=320"),
    )


def test_old_names_are_taken_by_new_releases():
    assert flags_for("0.5.23", ("--cuda-graph-max-bs=9",)) == ("--cuda-graph-max-bs-decode=9",)
    assert newest_name("--enable-gdn-replayssm-spec") == "--enable-linear-replayssm-spec"


@pytest.mark.parametrize(
    ("version", "flag"), [("0.5.18", "--torchao-config"), ("0.5.10", "--speculative-adaptive")]
)
def test_what_a_release_does_not_know_and_cannot_do_without_is_refused(version, flag):
    with pytest.raises(EngineError, match=flag) as refusal:
        flags_for(version, (flag, "x"))
    assert version in refusal.value.what
    assert "Leave" in refusal.value.fix


def test_the_table_names_each_flag_once():
    flags = [change.flag for change in CHANGES]
    assert len(flags) == len(set(flags))
    assert all(bool(change.was) == (change.kind == "renamed") for change in CHANGES)
    assert version_tuple("0.5.17.post1") == (0, 5, 17)


def test_what_only_makes_it_faster_is_left_out_where_it_is_not_known():
    flags = ("--disable-radix-cache", "--min-free-slots-delay", "4", "--max-running-requests", "9")
    assert flags_for("0.5.14", flags) == (flags[0], *flags[3:])
    assert flags_for("0.5.15", flags) == flags
