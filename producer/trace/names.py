"""Which items of a run somebody means: a number, a row, a job of RQ's, or what the row is called.

What a user called a row is data, unique or not, and nothing is looked up by it but here: its
prompt shards are read, a few at a time, and each row's id is compared.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import codec
from common.build import build
from common.errors import UsageError, VerifyError
from common.ids import Item, item_of, item_of_job, row_of
from common.objectstore import ObjectMissingError, RunPaths
from common.records import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from common.objectstore import ObjectStore
    from common.records import RunManifest

MOST = 100  # matches that are listed; the rest are counted
_PARALLEL = 4
_AHEAD = 4  # shards in memory: packed, and unpacked while they are looked through
_SHARD_LIMIT_BYTES = 16 * 2**30


@dataclass(frozen=True, slots=True)
class Match:
    """One item that was meant."""

    item: Item
    row: int  # 1 is the first, as in the data set
    sample: int
    row_id: str | None = None


@dataclass(frozen=True, slots=True)
class Matches:
    """The items that were meant: the first of them, and how many there are."""

    found: list[Match]
    total: int


def matches_of(
    store: ObjectStore, manifest: RunManifest, name: str, read: Callable[[int], None]
) -> Matches:
    """Return the items that ``name`` means: ``N`` or ``RUN-N`` an item, ``row:N`` a row.

    Everything else, and what follows ``id:``, is what the user called a row; all rows of that name
    are found. ``read`` is told how many shards were read for that.

    Raises:
        UsageError: the run has no such item or row.
        StoreError: the store could not be asked.
        VerifyError: a prompt shard is damaged.
    """
    samples = manifest.settings.samples
    kind, _, rest = name.partition(":")
    item = _item(manifest, name)
    if kind == "row" and _is_whole(rest):
        rows = range(int(rest) - 1, int(rest))
        if not 0 <= rows[0] < manifest.rows:
            raise _missing(manifest, f"row {rest}", f"rows 1 to {manifest.rows:,}")
        return _all([(row, None) for row in rows], 1, samples)
    if item is not None:
        if item >= manifest.items:
            raise _missing(manifest, f"item {item}", f"items 0 to {manifest.items - 1:,}")
        row, sample = row_of(item, samples)
        return Matches([Match(item, row + 1, sample)], 1)
    wanted = rest if kind == "id" and rest else name
    found: list[tuple[int, str | None]] = []
    total = 0
    for row in _rows_called(store, manifest, wanted, read):
        total += 1
        if len(found) < MOST:
            found.append((row, wanted))
    return _all(found, total, samples)


def is_number(manifest: RunManifest, name: str) -> bool:
    """Tell whether a name is a number of an item or of a row, so that no prompt need be read."""
    kind, _, rest = name.partition(":")
    return _item(manifest, name) is not None or (kind == "row" and _is_whole(rest))


def _item(manifest: RunManifest, name: str) -> Item | None:
    return Item(int(name)) if _is_whole(name) else item_of_job(manifest.run, name)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _all(rows: list[tuple[int, str | None]], total: int, samples: int) -> Matches:
    found = [
        Match(item_of(row, sample, samples), row + 1, sample, row_id)
        for row, row_id in rows
        for sample in range(samples)
    ]
    return Matches(found[:MOST], total * samples)


def _missing(manifest: RunManifest, what: str, there: str) -> UsageError:
    return UsageError(
        f"Run {manifest.run} has no {what}.",
        why=f"It has {there}.",
        fix=f"gen-producer trace {manifest.run} id:NAME    looks for what a row is called",
    )


def _rows_called(
    store: ObjectStore, manifest: RunManifest, wanted: str, read: Callable[[int], None]
) -> Iterator[int]:
    """Yield the numbers of rows of a name. Memory: a few shards."""
    mark = codec.dumps(wanted)
    shards = range(len(manifest.shards))
    with ThreadPoolExecutor(_PARALLEL) as pool:
        coming = deque(pool.submit(_packed, store, manifest, n) for n in shards[:_AHEAD])
        for number in shards:
            packed = coming.popleft().result()
            if number + _AHEAD < len(shards):
                coming.append(pool.submit(_packed, store, manifest, number + _AHEAD))
            for place, line in enumerate(_checked_lines(store, manifest, number, packed)):
                if mark in line and _id_of(line) == wanted:
                    yield number * manifest.shard_rows + place
            read(number + 1)


def _packed(store: ObjectStore, manifest: RunManifest, shard: int) -> bytes:
    return store.get(RunPaths(manifest.run).prompts(manifest.fingerprint, shard))


def _checked_lines(
    store: ObjectStore, manifest: RunManifest, shard: int, packed: bytes
) -> list[bytes]:
    try:
        return _lines(packed)
    except ValueError as error:
        key = RunPaths(manifest.run).prompts(manifest.fingerprint, shard)
        raise VerifyError(
            f"{store.url}/{key} is damaged.",
            why=str(error),
            fix=f"gen-producer verify {manifest.run}",
        ) from error


def _lines(packed: bytes) -> list[bytes]:
    return codec.decompress(packed, limit_bytes=_SHARD_LIMIT_BYTES).split(b"\n")


def _id_of(line: bytes) -> str | None:
    try:
        return build(Row, codec.loads(line)).id
    except ValueError:
        return None


def row_at(store: ObjectStore, manifest: RunManifest, number: int) -> Row | None:
    """Return a row (0 is the first) as it was loaded; None where its shard is gone or damaged.

    Raises:
        StoreError: the store could not be asked.
    """
    shard, place = divmod(number, manifest.shard_rows)
    try:
        return build(Row, codec.loads(_lines(_packed(store, manifest, shard))[place]))
    except (ObjectMissingError, ValueError, IndexError):
        return None
