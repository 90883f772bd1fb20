"""Data sets on object storage: what a store does to them while they are read."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import stamina

from common.errors import InputError, StoreError
from common.s3 import open_store
from producer.sources.reader import read_rows
from producer.sources.records import Fault, Limits
from producer.sources.url import sources_of
from tests.support.s3_exchange import GET, LIST

ROWS = 3000
LINE = b'{"prompt":"%07d' + b"x" * 2000 + b'"}\n'  # 6 MB: more than one request's worth
pytestmark = pytest.mark.row("F12")


@pytest.fixture
def place(store):
    store.put("in/a.jsonl", b"".join(LINE % n for n in range(ROWS)))
    return f"{store.url}/in/a.jsonl"


@pytest.fixture
def through(store_proxy, settings):
    """Reads a place through the proxy."""

    def bucket(name):
        there = {"store": f"s3://{name}", "s3_endpoint": store_proxy.url}
        return open_store(settings.model_copy(update=there))

    return lambda place: read_rows(sources_of((place,), bucket), Limits())


@pytest.mark.parametrize(
    "fault",
    ["500", "cut", *(pytest.param(name, marks=pytest.mark.faults) for name in ("503", "reset"))],
)
def test_a_store_that_fails_in_the_middle_is_asked_again(through, store_proxy, place, fault):
    rows = through(place)
    first = next(rows)
    store_proxy.fail(fault, on={GET}, times=2)
    numbers = [int(row.value["prompt"][:7]) for row in (first, *rows)]
    assert numbers == list(range(ROWS))
    assert store_proxy.count(GET, fault=fault) == 2


@pytest.mark.parametrize("name", ["a.jsonl", "b.parquet"])
def test_a_store_that_goes_on_failing_is_an_error_that_names_the_object(
    through, store_proxy, store, place, name
):
    file = io.BytesIO()
    column = [(LINE % n)[11:].decode(errors="replace") + str(n) * 300 for n in range(ROWS)]
    pq.write_table(pa.table({"prompt": column}), file, row_group_size=500, compression="none")
    store.put("in/b.parquet", file.getvalue())
    rows = through(f"{store.url}/in/{name}")
    next(rows)
    store_proxy.fail("500", on={GET})
    with stamina.set_testing(True, attempts=3), pytest.raises(StoreError) as caught:
        list(rows)
    assert f"in/{name}" in str(caught.value)
    assert "InternalError" in str(caught.value)


def test_an_object_that_changes_or_goes_while_it_is_read_is_refused(through, store, place):
    rows = through(place)
    next(rows)
    store.put("in/a.jsonl", b"".join(LINE % (n + 1) for n in range(ROWS)))
    with pytest.raises(StoreError, match=r"in/a\.jsonl"):
        list(rows)
    rows = through(place)
    next(rows)
    store.delete("in/a.jsonl")
    with pytest.raises(StoreError, match=r"in/a\.jsonl"):
        list(rows)


def test_a_folder_of_objects_is_listed_with_patience(through, store_proxy, store, place):
    store.put("in/README.md", b"# words")
    store_proxy.fail("503", on={LIST}, times=1)
    found = list(through(place.removesuffix("a.jsonl")))
    assert len(found) == ROWS
    assert not [row for row in found if isinstance(row, Fault)]
    with pytest.raises(InputError, match="is not there") as caught:
        list(through(place.removesuffix("/a.jsonl")))
    assert caught.value.fix.endswith("/in/")
