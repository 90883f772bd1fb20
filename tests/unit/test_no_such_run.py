"""What is said where a run is not there: the nearest name, of Redis' or of storage's runs."""

from __future__ import annotations

from common.errors import StoreError
from common.ids import RunName
from common.no_such_run import not_in_redis, not_in_store, stored_runs
from tests.support.modelstore import ModelStore

RUN = RunName("secnd")


def test_the_nearest_run_is_named():
    assert not_in_redis(RUN, ["first", "second"]).what == (
        "There is no run secnd in Redis: did you mean second?"
    )
    assert not_in_redis(RUN, ["other"]).what == "There is no run secnd in Redis."


def test_storage_names_its_own_runs_and_nothing_else_that_lies_there():
    store = ModelStore()
    for key in ("second/run.json", "second/data/x", ".genq-probe/a", "Not A Run/x", "loose"):
        store.put(key, b"")
    assert stored_runs(store) == {"second"}
    assert not_in_store(store, RUN).what.endswith(": did you mean second?")


def test_a_store_that_lists_nothing_costs_only_the_hint():
    class Refusing(ModelStore):
        def folders(self):
            raise StoreError("Cannot list.")

    assert "no run secnd in" in not_in_store(Refusing(), RUN).what
