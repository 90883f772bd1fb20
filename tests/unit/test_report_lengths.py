"""Bins and percentiles of a report's lengths: exact, whole, and made for the limit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producer.report.lengths import LINEAR_REACH, Lengths, linear_edges, log_edges
from producer.report.ticks import length_ticks, place_of, time_ticks

LIMITS = st.none() | st.integers(1, 200_000)
LENGTHS = st.lists(st.tuples(st.integers(0, 100_000), st.booleans()), min_size=1, max_size=60)


def counted(pairs):
    lengths = Lengths()
    for tokens, cut in pairs:
        lengths.add(tokens, cut=cut)
    return lengths


@given(pairs=LENGTHS, limit=LIMITS)
@settings(max_examples=60)
def test_every_completion_is_in_the_one_bin_that_says_so(pairs, limit):
    found = counted(pairs).distribution(limit)
    for at, one in enumerate(found.bins):
        first = at == 0
        inside = [
            (tokens, cut)
            for tokens, cut in pairs
            if (one.above < tokens or (first and tokens == one.above)) and tokens <= one.up_to
        ]
        assert (one.completions, one.cut) == (len(inside), sum(cut for _, cut in inside))
    assert sum(one.completions for one in found.bins) == found.completions == len(pairs)
    assert all(a.up_to == b.above for a, b in pairwise(found.bins))
    assert len(found.bins) <= 130


@given(pairs=LENGTHS)
@settings(max_examples=60)
def test_percentiles_are_those_of_the_sorted_list(pairs):
    found = counted(pairs).distribution()
    ordered = sorted(tokens for tokens, _ in pairs)
    for share, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
        assert value == ordered[-(-share * len(ordered) // 100) - 1]
    assert found.longest == ordered[-1]
    assert found.tokens == sum(ordered)


@pytest.mark.parametrize("edges", [linear_edges, log_edges])
@given(shortest=st.integers(0, 5000), more=st.integers(0, 50_000), limit=LIMITS)
@settings(max_examples=60)
def test_edges_rise_cover_and_meet_a_limit_that_is_near(edges, shortest, more, limit):
    longest = shortest + more
    found = edges(shortest, longest, limit)
    assert found == sorted(set(found))
    assert found[0] <= max(0, shortest - 1)
    assert found[-1] >= longest
    if limit is not None and max(1, shortest) <= limit <= LINEAR_REACH * longest:
        assert limit in found


def test_what_was_cut_at_the_limit_is_one_bar():
    found = counted([(n, False) for n in range(1, 700)] + [(700, True)] * 300).distribution(700)
    (bar,) = [one for one in found.bins if one.cut]
    assert (bar.up_to, bar.cut) == (700, 300)
    assert found.scale == "linear"


def test_lengths_that_spread_widely_are_binned_by_ratio_and_marked_with_round_numbers():
    found = counted([(2**n, False) for n in range(16)]).distribution(40_000)
    assert found.scale == "log"
    ticks = length_ticks(found, 8)
    assert 1000 in ticks
    places = [place_of(tick, found) for tick in ticks]
    assert places == sorted(places)
    assert place_of(40_000, found) == len(found.bins)


def test_bins_of_another_distribution_can_be_taken_over():
    thoughts, answers = counted([(5000, False)]), counted([(10, False)])
    both = (thoughts + answers).distribution()
    taken = answers.distribution(like=both)
    assert [one.up_to for one in taken.bins] == [one.up_to for one in both.bins]
    assert taken.longest == 10
    assert Lengths().distribution() is None


@pytest.mark.parametrize("span", [3.0, 90.0, 5000.0, 90_000.0, 1_000_000.0, 90_000_000.0])
def test_marks_of_time_are_few_and_name_the_day(span):
    marks = time_ticks(1_790_000_123.0, 1_790_000_123.0 + span, 6)
    assert 1 <= len(marks) <= 8
    assert any(letter.isalpha() for letter in marks[0][1])
