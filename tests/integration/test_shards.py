"""Prompt shards: fetched side by side, and the next one before it is needed."""

from __future__ import annotations

import threading
from collections import Counter

from common.errors import StoreAwayError
from common.records import RunSettings
from consumer.leases.shards import Shards
from tests.support.consumers import SHARD_ROWS, enqueue_run, rows_of, store_rows
from tests.support.leases import Leases
from tests.support.servers import eventually

SETTINGS = RunSettings(model="tiny", model_fingerprint="")


class Watched:
    """A store that counts what is asked for, and can hold each answer until others ask, too."""

    def __init__(self, store, *, together: int = 1) -> None:
        self._store = store
        self._barrier = threading.Barrier(together)
        self.asked: Counter[int] = Counter()
        self.away: set[int] = set()

    @property
    def url(self):
        return self._store.url

    def get(self, key):
        if "/prompts/" in key:
            shard = int(key.rsplit("/", 1)[1].partition(".")[0])
            self.asked[shard] += 1
            self._barrier.wait(10.0)
            if shard in self.away:
                raise StoreAwayError("away", why="a test")
        return self._store.get(key)


def stored(store, shards: int):
    return store_rows(store, "one", rows_of(*("x" for _ in range(shards * SHARD_ROWS))), SETTINGS)


async def test_the_shards_of_one_lease_call_are_fetched_side_by_side(world) -> None:
    """Each answer waits for four requests: one after another, none would ever come."""
    await enqueue_run(world.client, stored(world.store, 4))
    works = await Leases(world.client, Watched(world.store, together=4)).fetch(4 * SHARD_ROWS)
    assert [work.leased.item for work in works] == list(range(4 * SHARD_ROWS))


async def test_rows_in_order_find_the_next_shard_there(world) -> None:
    manifest, store = stored(world.store, 4), Watched(world.store)
    shards = Shards(store)
    for number in range(2 * SHARD_ROWS):
        await shards.row(manifest, number)
    await eventually(lambda: set(store.asked) == {0, 1, 2}, 10)
    assert set(store.asked.values()) == {1}


async def test_scattered_rows_bring_no_shard_that_nobody_asked_for(world) -> None:
    manifest, store = stored(world.store, 5), Watched(world.store)
    shards = Shards(store)
    for shard in (3, 1):
        await shards.row(manifest, shard * SHARD_ROWS)
    assert set(store.asked) == {3, 1}


async def test_a_next_shard_that_could_not_be_had_is_asked_for_again_when_it_is_needed(world):
    manifest, store = stored(world.store, 3), Watched(world.store)
    shards = Shards(store)
    store.away = {1}
    await shards.row(manifest, 0)
    await eventually(lambda: all(load.done() for load in shards._loads.values()), 10)
    for number in range(SHARD_ROWS):
        await shards.row(manifest, number)
    assert store.asked[1] == 1, "not with every row"
    store.away = set()
    assert (await shards.row(manifest, SHARD_ROWS)).id == f"row-{SHARD_ROWS}"
