"""What the services need of object storage, on a real server: one suite for every store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from common.objectstore import Created, ObjectMissingError
from consumer.sink.single import SingleWriterStore
from tests.support.modelstore import ModelStore


@pytest.fixture(params=["s3", "single-writer", "model"])
def any_store(request):
    """The model is held to the same suite, since the commit's state machine trusts it."""
    if request.param == "model":
        return ModelStore()
    store = request.getfixturevalue("store")
    return store if request.param == "s3" else SingleWriterStore(store, SimpleNamespace(sure=True))


def test_what_is_put_is_there(any_store):
    any_store.put("run/a.txt", b"one", metadata={"genq-writer": "me"})
    assert any_store.get("run/a.txt") == b"one"
    stat = any_store.stat("run/a.txt")
    assert (stat.key, stat.size, stat.metadata) == ("run/a.txt", 3, {"genq-writer": "me"})
    assert stat.etag == "f97c5d29941bfb1b2fdab0874906ab82"


def test_what_is_not_there_is_missing(any_store):
    assert any_store.stat("nothing") is None
    with pytest.raises(ObjectMissingError):
        any_store.get("nothing")
    any_store.delete("nothing")


def test_a_put_replaces_and_a_delete_removes(any_store):
    any_store.put("a", b"one")
    any_store.put("a", b"")
    assert any_store.get("a") == b""
    any_store.delete("a")
    assert any_store.stat("a") is None


def test_create_makes_an_object_once(any_store):
    assert any_store.create("part", b"mine", metadata={"genq-writer": "a"}) is Created.CREATED
    assert any_store.create("part", b"yours", metadata={"genq-writer": "b"}) is Created.EXISTS
    assert any_store.get("part") == b"mine"
    assert any_store.stat("part").metadata == {"genq-writer": "a"}


def test_listing_is_sorted_bounded_by_the_prefix_and_goes_on_after_a_key(any_store):
    for key in ("x/data/b", "x/data/a", "x/data/sub/c", "x/database", "y/data/a"):
        any_store.put(key, b".")
    assert [s.key for s in any_store.list("x/data/")] == ["x/data/a", "x/data/b", "x/data/sub/c"]
    after = any_store.list("x/data/", start_after="x/data/a")
    assert [stat.key for stat in after] == ["x/data/b", "x/data/sub/c"]
    assert list(any_store.list("z/")) == []


def test_the_probe_passes_and_leaves_nothing(any_store):
    any_store.probe()
    assert list(any_store.list("")) == []


def test_of_many_creators_one_wins(store):
    def create(writer: int) -> Created:
        return store.create("race", b"%d" % writer, metadata={"genq-writer": str(writer)})

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(create, range(16)))
    assert outcomes.count(Created.CREATED) == 1
    assert set(outcomes) <= {Created.CREATED, Created.EXISTS, Created.CONFLICT}
    winner = outcomes.index(Created.CREATED)
    assert store.get("race") == b"%d" % winner
    assert store.stat("race").metadata == {"genq-writer": str(winner)}
