"""Single-writer mode, for stores that ignore ``If-None-Match``: a lease keeps a second sink out.

It is weaker than the conditional PUT: no part is begun without the lease, but a sink that is
stopped just then, for longer than the lease, can overwrite one. Use it only where the store leaves
no choice.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from common.errors import ConflictError, GenqError, QueueAwayError, StoreError
from common.ids import new_nonce
from common.keys import SINK_LOCK
from common.objectstore import Created
from common.redis_client import LOCK_LOST
from consumer.sink.outage import pause

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import redis.asyncio

    from common.objectstore import ObjectStat, ObjectStore

log = structlog.get_logger()
LEASE_SECONDS = 30.0
SURE = 0.75  # of it: after so long without a renewal the sink stops, a PUT in hand has the rest
_OCTETS = "application/octet-stream"
_NONE: Mapping[str, str] = {}


class WriterLease:
    """The right to be the only sink of this Redis. ``lost``: why it is no longer held, if so."""

    def __init__(self, redis: redis.asyncio.Redis) -> None:
        self._lock = redis.lock(SINK_LOCK, timeout=LEASE_SECONDS)
        self._proven = 0.0  # when the last renewal that went well was asked for
        self.lost: GenqError | None = None

    @property
    def sure(self) -> bool:
        """Whether no other sink can have it, for long enough to write a part; from any thread."""
        age = time.monotonic() - self._proven
        return self.lost is None and age <= SURE * LEASE_SECONDS

    async def take(self) -> None:
        """Take the lease; one that a killed sink left is waited for.

        Raises:
            ConflictError: another sink has it, and renews it.
        """
        self._proven = time.monotonic()
        if await self._lock.acquire(blocking=False):
            return
        log.info("sink.lease_taken_by_another", waiting_seconds=LEASE_SECONDS)
        if not await self._lock.acquire(blocking_timeout=LEASE_SECONDS * 1.1):
            raise ConflictError(
                "Another sink is at work in single-writer mode.",
                why=f"It holds and renews {SINK_LOCK} in Redis.",
                fix="Stop that one first.",
            )
        self._proven = time.monotonic()

    async def keep(self, stop: asyncio.Event) -> None:
        """Renew the lease until ``stop``; a lease that is lost stops the sink.

        A Redis that does not answer is asked again while the last renewal is surely good.
        """
        wait = LEASE_SECONDS / 4
        while not stop.is_set():
            await pause(stop, wait)
            began, wait = time.monotonic(), LEASE_SECONDS / 4
            try:
                async with asyncio.timeout(LEASE_SECONDS / 8):
                    await self._lock.reacquire()
                self._proven = began
            except LOCK_LOST as error:
                self._lose(stop, ConflictError(f"The lease {SINK_LOCK} is lost.", why=str(error)))
            except Exception as error:  # noqa: BLE001 - whatever the reason, it is not renewed
                wait = LEASE_SECONDS / 30
                if time.monotonic() - self._proven > SURE * LEASE_SECONDS:
                    what = f"The lease {SINK_LOCK} could not be renewed in time."
                    self._lose(stop, QueueAwayError(what, why=repr(error)))

    def _lose(self, stop: asyncio.Event, lost: GenqError) -> None:
        if not stop.is_set():
            log.error("sink.lease_lost", what=lost.what, why=lost.why)
            self.lost = lost
            stop.set()

    async def give_back(self) -> None:
        """Let the next sink in at once."""
        if self.lost is None and await self._lock.owned():
            await self._lock.release()


class SingleWriterStore:
    """A store whose conditional PUT looks first, and then writes, while the lease is sure."""

    def __init__(self, store: ObjectStore, lease: WriterLease) -> None:
        self._store = store
        self._lease = lease
        self.url = store.url

    def create(
        self,
        key: str,
        data: bytes,
        *,
        content_type: str = _OCTETS,
        metadata: Mapping[str, str] = _NONE,
    ) -> Created:
        """Write an object if there was none a moment ago.

        Raises:
            StoreError: it may be there; or the lease is not sure, and nothing was written.
        """
        if self._store.stat(key) is not None:
            return Created.EXISTS
        if not self._lease.sure:  # last of all: what was asked before may have taken its time
            raise StoreError(
                f"{self.url}/{key} is not written: another sink may be at work by now.",
                why=f"The lease {SINK_LOCK} of this one is lost, or was not renewed in time.",
                fix="It is written once the lease is renewed, or by the sink that has it then.",
            )
        self._store.put(key, data, content_type=content_type, metadata=metadata)
        return Created.CREATED

    def probe(self) -> None:
        """Check that writing, reading, listing and deleting work; raises StoreError."""
        key = f".genq-probe/{new_nonce()}"
        self.put(key, b"a")
        try:
            if self.get(key) != b"a" or [found.key for found in self.list(key)] != [key]:
                raise StoreError(f"{self.url} does not show what was just written.")
        finally:
            self.delete(key)

    def put(
        self,
        key: str,
        data: bytes,
        *,
        content_type: str = _OCTETS,
        metadata: Mapping[str, str] = _NONE,
    ) -> None:
        """See :class:`common.objectstore.ObjectStore`."""
        self._store.put(key, data, content_type=content_type, metadata=metadata)

    def get(self, key: str) -> bytes:
        """See :class:`common.objectstore.ObjectStore`."""
        return self._store.get(key)

    def read_range(self, key: str, offset: int, size: int, *, etag: str) -> bytes:
        """See :class:`common.objectstore.ObjectStore`."""
        return self._store.read_range(key, offset, size, etag=etag)

    def stat(self, key: str) -> ObjectStat | None:
        """See :class:`common.objectstore.ObjectStore`."""
        return self._store.stat(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectStat]:
        """See :class:`common.objectstore.ObjectStore`."""
        return self._store.list(prefix, start_after=start_after)

    def folders(self) -> Iterator[str]:
        """See :class:`common.objectstore.ObjectStore`."""
        return self._store.folders()

    def delete(self, key: str) -> None:
        """See :class:`common.objectstore.ObjectStore`."""
        self._store.delete(key)
