"""Object storage as the services see it: a small protocol, and the keys of a run.

Keys are relative to the store's prefix. All calls block: async code calls them in threads. Plain
calls are retried below this protocol; the one conditional PUT of a commit never is, because a
repeat would meet its own first try.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from common.errors import StoreError
from common.ids import RunName, run_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class ObjectMissingError(StoreError):
    """The object is not there."""


class Created(Enum):
    """How one conditional PUT ended."""

    CREATED = auto()
    EXISTS = auto()  # 412: the key is taken, perhaps by an earlier try of ours
    CONFLICT = auto()  # 409: another change was in flight
    UNKNOWN = auto()  # the answer was lost, or is not one of the above


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What a store says of an object; metadata keys in lower case, without ``x-amz-meta-``."""

    key: str
    size: int
    etag: str
    metadata: Mapping[str, str] = field(default_factory=dict)


class ObjectStore(Protocol):
    """What the services need of object storage. Every call may raise StoreError."""

    url: str

    def put(
        self,
        key: str,
        data: bytes,
        *,
        content_type: str = ...,
        metadata: Mapping[str, str] = ...,
    ) -> None:
        """Write an object, over one that may be there; a single PUT, retried."""

    def create(
        self,
        key: str,
        data: bytes,
        *,
        content_type: str = ...,
        metadata: Mapping[str, str] = ...,
    ) -> Created:
        """Write an object only if there is none: one PUT with ``If-None-Match: *``, no retry."""

    def get(self, key: str) -> bytes:
        """Return an object. Raises ObjectMissingError."""

    def read_range(self, key: str, offset: int, size: int, *, etag: str) -> bytes:
        """Return bytes of an object; refused if it is no longer the version that ``etag`` names."""

    def stat(self, key: str) -> ObjectStat | None:
        """Return what is known of an object, or None if there is none."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectStat]:
        """Yield the objects whose keys begin with ``prefix``, by key; without metadata."""

    def folders(self) -> Iterator[str]:
        """Yield what keys begin with up to their first ``/``, each once."""

    def delete(self, key: str) -> None:
        """Delete an object; no error when there is none."""

    def probe(self) -> None:
        """Check that writing, creating, reading, listing and deleting do what they promise."""


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The keys of one run in the store."""

    run: RunName

    def __post_init__(self) -> None:
        run_name(self.run)  # a key is only ever made from a checked name

    @property
    def run_json(self) -> str:
        return f"{self.run}/run.json"

    def prompts(self, fingerprint: str, shard: int) -> str:
        """Key of prompt shard number ``shard``."""
        return f"{self.run}/prompts/{fingerprint}/{shard:06}.jsonl.zst"

    @property
    def data_prefix(self) -> str:
        return f"{self.run}/data/"

    def part(self, number: int, suffix: str) -> str:
        """Key of part ``number``; the suffix is ``parquet`` or ``jsonl.zst``."""
        return f"{self.data_prefix}part-{number:08}.{suffix}"

    @property
    def index_prefix(self) -> str:
        return f"{self.run}/index/"

    def index(self, number: int) -> str:
        """Key of the index of part ``number``."""
        return f"{self.index_prefix}part-{number:08}.json"

    @property
    def children_prefix(self) -> str:
        return f"{self.run}/children/"

    def child(self, run: RunName) -> str:
        """Key of the object that says that ``run`` is a child of this one."""
        return f"{self.children_prefix}{run_name(run)}.json"

    def child_name(self, key: str) -> RunName:
        """Return the run that a key below ``children/`` names."""
        return run_name(key.removeprefix(self.children_prefix).removesuffix(".json"))

    @property
    def accepted(self) -> str:
        return f"{self.run}/accepted.json"

    @property
    def cancelled(self) -> str:
        return f"{self.run}/cancelled.json"

    @property
    def engine(self) -> str:
        return f"{self.run}/engine.json"

    @property
    def failed(self) -> str:
        return f"{self.run}/failed.jsonl"

    @property
    def manifest(self) -> str:
        return f"{self.run}/manifest.json"

    @property
    def readme(self) -> str:
        return f"{self.run}/README.md"

    @property
    def success(self) -> str:
        return f"{self.run}/_SUCCESS"
