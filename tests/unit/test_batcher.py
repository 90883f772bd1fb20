"""The batcher: sealed at rows, bytes or seconds, whichever comes first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.ids import Item
from common.records import StreamEntry
from consumer.sink.batcher import Batcher, Bounds
from tests.support.completions import completion


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def entry(number: int, item: int) -> StreamEntry:
    return StreamEntry(f"{number}-0", Item(item), b"")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def batcher(clock):
    return Batcher(Bounds(rows=3, bytes=100, seconds=60), clock)


def add(batcher, number, item, size=1):
    batcher.add(entry(number, item), completion(item), size)


def test_an_empty_batch_is_never_due(batcher, clock):
    clock.now += 1e9
    assert not batcher.due()
    assert batcher.room() == 3


def test_a_batch_is_due_at_its_rows(batcher):
    add(batcher, 1, 1)
    add(batcher, 2, 2)
    assert not batcher.due()
    assert batcher.room() == 1
    add(batcher, 3, 3)
    assert batcher.due()
    assert batcher.room() == 0


def test_a_batch_is_due_at_its_bytes(batcher):
    add(batcher, 1, 1, 99)
    assert not batcher.due()
    add(batcher, 2, 2, 1)
    assert batcher.due()


def test_a_batch_is_due_when_its_first_result_is_old_enough(batcher, clock):
    add(batcher, 1, 1)
    clock.now += 59
    add(batcher, 2, 2)
    assert not batcher.due()
    assert batcher.wait_seconds() == pytest.approx(1)
    clock.now += 1
    assert batcher.due()


def test_the_next_batch_begins_anew(batcher, clock):
    add(batcher, 1, 1, 99)
    clock.now += 60
    first = batcher.seal()
    assert list(first.completions) == [1]
    assert not batcher.due()
    add(batcher, 2, 2, 99)
    assert not batcher.due()
    assert list(batcher.seal().entries) == ["2-0"]


def test_a_double_is_stored_once_and_acknowledged_twice(batcher):
    add(batcher, 1, 7)
    batcher.add(entry(2, 7), completion(7, content="another"), 1)
    batch = batcher.seal()
    assert list(batch.entries) == ["1-0", "2-0"]
    assert batch.completions == {7: completion(7)}


def test_an_entry_that_is_claimed_again_is_known(batcher):
    add(batcher, 1, 7)
    assert batcher.holds(entry(1, 7))
    assert not batcher.holds(entry(2, 7))


def test_a_poison_item_leaves_with_all_its_entries(batcher):
    add(batcher, 1, 7)
    add(batcher, 2, 8)
    add(batcher, 3, 7)
    batch = batcher.seal()
    assert [one.entry_id for one in batch.drop(7)] == ["1-0", "3-0"]
    assert list(batch.entries) == ["2-0"]
    assert list(batch.completions) == [8]


@given(
    results=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 60), st.floats(0, 30)), max_size=60
    )
)
def test_whatever_comes_every_entry_is_in_one_batch_and_bounds_hold(results):
    clock = Clock()
    bounds = Bounds(rows=5, bytes=100, seconds=60)
    batcher = Batcher(bounds, clock)
    sealed = []
    for number, (item, size, seconds) in enumerate(results):
        clock.now += seconds
        if batcher.due():
            sealed.append(batcher.seal())
        add(batcher, number, item, size)
        if batcher.due():
            sealed.append(batcher.seal())
    sealed.append(batcher.seal())
    entries = [entry_id for batch in sealed for entry_id in batch.entries]
    assert entries == [f"{number}-0" for number in range(len(results))]
    for batch in sealed:
        assert len(batch.entries) <= bounds.rows
        assert {one.item for one in batch.entries.values()} == set(batch.completions)
