"""What a run is, read from object storage: its run.json and the rows of its prompt shards.

Readers are lenient about fields they do not know (a newer producer's) and strict about the rest.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from common.codec import loads
from common.errors import StoreError
from common.ids import RunName
from common.installing import UPGRADE
from common.records import RUN_VERSION, Row, RunManifest, RunSettings, Sampling, ShardInfo
from common.shard import checked_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

SHARD_LIMIT_BYTES = 4 << 30  # a shard that unfolds to more is not one of ours

T = TypeVar("T")


def _known(cls: type[T], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if name in names}


def read_sampling(values: Mapping[str, Any]) -> Sampling:
    """Return sampling settings from their JSON form."""
    known = _known(Sampling, values)
    if known.get("stop") is not None:
        known["stop"] = tuple(known["stop"])
    return Sampling(**known)


def read_row(line: bytes) -> Row:
    """Return the row that one line of a shard holds.

    Raises:
        ValueError: it is not a row.
    """
    try:
        values = _known(Row, loads(line))
        values["sampling"] = read_sampling(values.get("sampling") or {})
        return Row(**values)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a row: {error}") from error


def read_manifest(data: bytes, key: str) -> RunManifest:
    """Return the run that a run.json describes.

    Raises:
        StoreError: the object is not a run.json, or of a version that this consumer cannot read.
    """
    try:
        values = loads(data)
        version = values.get("version", RUN_VERSION)
        if version > RUN_VERSION:
            raise StoreError(
                f"{key} is of version {version}; this consumer reads up to {RUN_VERSION}.",
                why="The producer that made the run is newer than this consumer.",
                fix=f"Upgrade this consumer: {UPGRADE}",
            )
        settings = _known(RunSettings, values["settings"])
        settings["sampling"] = read_sampling(settings.get("sampling") or {})
        known = _known(RunManifest, values)
        known["run"] = RunName(known["run"])
        known["settings"] = RunSettings(**settings)
        known["shards"] = [ShardInfo(**_known(ShardInfo, shard)) for shard in known["shards"]]
        return RunManifest(**known)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{key} is not a run.json.", why=f"{error!s:.300}") from error


def read_shard(data: bytes, shard: ShardInfo, key: str) -> list[bytes]:
    """Return the lines of a prompt shard, checked against the run's digest of it.

    Raises:
        StoreError: the object is not what the run's run.json says that it is.
    """
    try:
        return checked_lines(data, shard, limit_bytes=SHARD_LIMIT_BYTES)
    except ValueError as error:
        raise StoreError(f"{key} is damaged.", why=str(error)) from error
