"""An object store in memory that can fail each call, before or after it took effect."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.objectstore import Created, ObjectMissingError, ObjectStat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Died(BaseException):
    """The process was killed at this call."""


class ModelStore:
    """What a strongly consistent store with conditional writes does.

    ``fault(call, moment)`` is asked before and after each call took effect; it may raise Died, or
    return True for a failure that the caller sees.
    """

    url = "s3://model/test"

    def __init__(self, objects: dict[str, tuple[bytes, dict[str, str]]] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.fault: Callable[[str, str], bool] = lambda _call, _moment: False
        self.etag_of: Callable[[bytes], str] = lambda data: hashlib.md5(data).hexdigest()

    def put(
        self, key: str, data: bytes, *, content_type: str = "", metadata: Mapping[str, str] = {}
    ) -> None:
        self._fail("put", "before")
        self.objects[key] = (data, dict(metadata))
        self._fail("put", "after")

    def create(
        self, key: str, data: bytes, *, content_type: str = "", metadata: Mapping[str, str] = {}
    ) -> Created:
        if self.fault("create", "before"):
            return Created.UNKNOWN
        outcome = Created.EXISTS
        if key not in self.objects:
            self.objects[key] = (data, dict(metadata))
            outcome = Created.CREATED
        return Created.UNKNOWN if self.fault("create", "after") else outcome

    def get(self, key: str) -> bytes:
        self._fail("get", "before")
        if key not in self.objects:
            raise ObjectMissingError(f"{key} is not there")
        return self.objects[key][0]

    def stat(self, key: str) -> ObjectStat | None:
        self._fail("stat", "before")
        if key not in self.objects:
            return None
        data, metadata = self.objects[key]
        return ObjectStat(key, len(data), self.etag_of(data), metadata)

    def read_range(self, key: str, offset: int, size: int, *, etag: str) -> bytes:
        self._fail("read", "before")
        data = self.objects[key][0]
        assert self.etag_of(data) == etag
        return data[offset : offset + size]

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectStat]:
        self._fail("list", "before")
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > start_after:
                data = self.objects[key][0]
                yield ObjectStat(key, len(data), self.etag_of(data))

    def folders(self) -> Iterator[str]:
        yield from sorted({key.partition("/")[0] for key in self.objects if "/" in key})

    def delete(self, key: str) -> None:
        self._fail("delete", "before")
        self.objects.pop(key, None)
        self._fail("delete", "after")

    def probe(self) -> None:
        pass

    def _fail(self, call: str, moment: str) -> None:
        if self.fault(call, moment):
            raise StoreError(f"{call} failed {moment}")
