"""JSON and zstd frames round-trip, and damage is always noticed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import codec
from common.records import Sampling, Usage


@given(st.lists(st.binary(max_size=2000), max_size=4))
def test_frames_read_back_whole(blocks):
    data = b"".join(codec.compress(block) for block in blocks)
    assert codec.decompress(data, limit_bytes=10_000) == b"".join(blocks)


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_a_cut_frame_is_noticed(block, data):
    frame = codec.compress(block)
    cut = data.draw(st.integers(1, len(frame) - 1))
    with pytest.raises(ValueError, match=r"cut short|not zstd"):
        codec.decompress(frame[:cut], limit_bytes=10_000)


def test_a_bomb_is_stopped_at_its_limit():
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        codec.decompress(codec.compress(b"0" * 10_000_000), limit_bytes=1000)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_only_value_errors(data):
    with contextlib.suppress(ValueError):
        codec.decompress(data, limit_bytes=1000)


def test_records_are_written_as_objects():
    assert codec.loads(codec.dumps(Usage(1, 2)))["completion_tokens"] == 2
    assert codec.loads(codec.dumps(Sampling(stop=("a",))))["stop"] == ["a"]


def test_a_row_s_sampling_goes_before_the_run_s():
    assert Sampling(max_tokens=5).over(Sampling(max_tokens=9, top_p=0.5)) == Sampling(
        max_tokens=5, top_p=0.5
    )
