"""Prompt shards, fetched in threads and kept while they are in use."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from common.objectstore import RunPaths
from consumer.leases.rundata import read_row, read_shard

if TYPE_CHECKING:
    from common.objectstore import ObjectStore
    from common.records import Row, RunManifest

KEPT_SHARDS = 32
AT_ONCE = 16  # shards that are fetched and decoded side by side


class Shards:
    """A cache of decoded shards, the least recently used dropped first.

    Lines are kept as bytes and become rows when asked for: a shard is used a row at a time.
    """

    def __init__(self, store: ObjectStore, *, kept: int = KEPT_SHARDS) -> None:
        self._store = store
        self._kept = kept
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._loads: OrderedDict[str, asyncio.Task[list[bytes]]] = OrderedDict()

    async def row(self, manifest: RunManifest, number: int) -> Row:
        """Return one row of a run.

        Raises:
            StoreError: its shard is missing or damaged, or storage cannot be used; names the key.
            ValueError: the row's line is not a row.
        """
        shard = number // manifest.shard_rows
        lines = await self._lines(manifest, shard)
        if self._next_is_wanted(manifest, shard):
            self._loading(manifest, shard + 1)
        return read_row(lines[number - manifest.shards[shard].first_row])

    def _next_is_wanted(self, manifest: RunManifest, shard: int) -> bool:
        """Whether shards are read in order, and nobody has asked for the next one yet.

        Scattered items need no next one; one that could not be loaded is loaded when it is needed.
        """
        if shard + 1 >= len(manifest.shards) or _key(manifest, shard + 1) in self._loads:
            return False
        return shard == 0 or _key(manifest, shard - 1) in self._loads

    async def _lines(self, manifest: RunManifest, shard: int) -> list[bytes]:
        # Shielded: others may wait for the same shard when one of them is cancelled.
        return await asyncio.shield(self._loading(manifest, shard))

    def _loading(self, manifest: RunManifest, shard: int) -> asyncio.Task[list[bytes]]:
        key = _key(manifest, shard)
        load = self._loads.get(key)
        if load is None or (load.done() and (load.cancelled() or load.exception())):
            load = asyncio.create_task(self._load(manifest, shard, key))
            load.add_done_callback(_seen)
            self._loads[key] = load
            while len(self._loads) > self._kept:
                self._loads.popitem(last=False)
        self._loads.move_to_end(key)
        return load

    async def _load(self, manifest: RunManifest, shard: int, key: str) -> list[bytes]:
        async with self._slots:
            data = await asyncio.to_thread(self._store.get, key)
            return await asyncio.to_thread(read_shard, data, manifest.shards[shard], key)


def _key(manifest: RunManifest, shard: int) -> str:
    return RunPaths(manifest.run).prompts(manifest.fingerprint, shard)


def _seen(load: asyncio.Task[list[bytes]]) -> None:
    """Take notice of a failure that nobody waits for any more."""
    if not load.cancelled():
        load.exception()
