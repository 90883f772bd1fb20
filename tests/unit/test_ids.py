"""Names and numbers: only what is checked here ever becomes a key, a path or a job id."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import ids
from common.errors import UsageError
from common.ids import Item, RunName


@given(st.text())
def test_any_text_gets_a_valid_suggestion(text):
    assert ids.run_name(ids.suggest_run_name(text))


@given(st.text())
def test_an_accepted_name_holds_only_safe_characters(text):
    with contextlib.suppress(UsageError):
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", ids.run_name(text))


@pytest.mark.parametrize("bad", ["", "-a", "A", "a_b", "a/b", "..", "a" * 64, "a\n", "ä"])
def test_bad_run_names_are_refused(bad):
    with pytest.raises(UsageError):
        ids.run_name(bad)


@given(st.integers(0, 10**9), st.integers(1, 16), st.data())
def test_items_and_rows_are_one_to_one(row, samples, data):
    sample = data.draw(st.integers(0, samples - 1))
    item = ids.item_of(row, sample, samples)
    assert ids.row_of(item, samples) == (row, sample)


@given(st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True), st.integers(0, 10**9))
def test_job_ids_name_their_item_and_satisfy_rq(run, item):
    job = ids.job_id(RunName(run), Item(item))
    assert re.fullmatch(r"[A-Za-z0-9_-]+", job)
    assert ids.item_of_job(RunName(run), job) == item


@pytest.mark.parametrize(
    "foreign", ["", "run", "run-", "run-x", "run-01", "other-1", "run-\uff11", "run--1"]
)
def test_foreign_job_ids_name_no_item(foreign):
    assert ids.item_of_job(RunName("run"), foreign) is None


def test_seeds_differ_between_items_and_attempts_and_repeat_on_rerun():
    seeds = {ids.derived_seed(7, Item(k), a) for k in range(200) for a in range(1, 4)}
    assert len(seeds) == 600
    assert ids.derived_seed(7, Item(1), 1) == ids.derived_seed(7, Item(1), 1)
    assert ids.derived_seed(8, Item(1), 1) != ids.derived_seed(7, Item(1), 1)
    assert all(0 <= seed < 2**31 for seed in seeds)
