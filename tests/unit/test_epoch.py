"""The arithmetic of an epoch: shares are the whole, and what is left is the rest."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from common.epoch import Place, Progress, cut, from_json, holds, merged, size, to_json, without


@st.composite
def ranges(draw):
    points = draw(st.lists(st.integers(0, 60), unique=True, max_size=8).map(sorted))
    return list(zip(points[::2], points[1::2], strict=False))


def positions(left):
    return [at for start, end in left for at in range(start, end)]


@settings(max_examples=60)
@given(ranges(), st.integers(1, 7))
def test_cuts_are_the_whole_in_order_and_differ_by_one_at_most(left, of):
    cuts = [cut(left, n, of) for n in range(of)]
    assert [at for one in cuts for at in positions(one)] == positions(left)
    assert max(map(size, cuts)) - min(map(size, cuts)) <= 1


@settings(max_examples=60)
@given(ranges(), st.integers(0, 60), st.integers(0, 60))
def test_without_takes_out_that_and_nothing_else(left, start, end):
    kept = without(left, start, end)
    assert positions(kept) == [at for at in positions(left) if not start <= at < end]
    assert all(holds(kept, at) for at in positions(kept))


@settings(max_examples=60)
@given(ranges(), st.integers(1, 4), st.integers(0, 80), st.data())
def test_what_readers_gave_and_what_is_left_is_the_whole(left, readers, steps, data):
    """Every third position has nothing to give, and every fifth gives two examples."""
    progress = Progress(left)
    shares = [examples(progress.share(n, readers)) for n in range(readers)]
    whole = [one for share in shares for one in share]
    given = []
    for _ in range(steps):
        open_shares = [share for share in shares if share]
        if not open_shares:
            break
        place = data.draw(st.sampled_from(open_shares)).pop(0)
        progress.give(place)
        given.append(place)
    again = from_json(to_json(progress))
    rest = [one for n in range(3) for one in examples(again.share(n, 3))]
    named = [(one.at, one.given) for one in given + rest]
    assert sorted(named) == sorted((one.at, one.given) for one in whole)
    assert merged(again.share(n, 3) for n in range(3)).begun == again.begun


def examples(share):
    made = []
    for start, end in share.left:
        since = start
        for at in range(start, end):
            of = 0 if at % 3 == 0 else 2 if at % 5 == 0 else 1
            for n in range(share.begun.get(at, 0) + 1, of + 1):
                made.append(Place(since, at, n, of))
                since = at + (n == of)
    return made
