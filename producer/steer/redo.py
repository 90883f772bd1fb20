"""A child run: committed items of one class, done again with other settings.

The rows are copied to prompt shards of the child's own, in the order of the parent's items, one
item a row. Then the parent gets a note of its child, then the child its run.json, and then it is
loaded as any run: killed anywhere, the same command goes on, and whatever has a run.json is known
to its parent. What the parent holds is never touched.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.build import build
from common.codec import decompress, dumps, loads
from common.errors import ConflictError, StoreError
from common.failpoint import declare, hit
from common.family import (
    children_of,
    committed_items,
    items_of_class,
    pack_items,
    parent_items,
)
from common.ids import Item, RunName, derived_seed, row_of, run_name
from common.objectstore import RunPaths
from common.parts.bits import Bits
from common.records import Row, RunSettings
from producer.load.spool import Packer, Spool, spool_folder
from producer.load.upload import upload_shards
from producer.manifest import find_manifest, make_manifest, publish, settings_differences
from producer.sources.records import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from common.objectstore import ObjectStore
    from common.records import RunManifest, Sampling
    from producer.manifest import Wishes

declare("redo.after_shards", "redo.after_note", "redo.after_run_json")
_SHARD_LIMIT_BYTES = 16 * 2**30
_SEEDS = 1 << 31


@dataclass(frozen=True, slots=True)
class Redo:
    """What there is to be done again, and as which run."""

    parent: RunManifest
    reason: str
    found: int  # items of the class that are committed
    items: Bits  # of those: what no child has yet
    standing: list[RunManifest]  # children that were made by this very command
    others: list[RunManifest]  # further children
    name: RunName  # of the child that is to be made


def look(
    store: ObjectStore,
    parent: RunManifest,
    reason: str,
    wishes: Wishes,
    name: str | None,
    *,
    cancelled: Callable[[list[RunName]], Collection[RunName]],
) -> Redo:
    """Find out what there is to do. Changes nothing.

    ``cancelled`` tells which of some runs are: what such a child has not committed is not kept
    from another one, or a child with wrong settings would hold its items for ever.

    Raises:
        ConflictError: ``name`` is another run's.
        StoreError: the store could not be asked.
        VerifyError: a part or a run.json is damaged.
    """
    children = children_of(store, parent)
    standing = [
        child
        for child in children
        if child.parent_reason == reason
        and name in (None, child.run)
        and not settings_differences(child.settings, child_settings(parent, wishes, child.run))
    ]
    others = [child for child in children if child not in standing]
    ended = cancelled([child.run for child in others])
    given = Bits(parent.items)
    for child in children:
        its_items = parent_items(child, parent.items)
        if child.run in ended:
            roots = list(its_items)
            for item in committed_items(store, child):
                given.add(roots[item])
        else:
            given.add_all(its_items)
    items, found = Bits(parent.items), 0
    for item in items_of_class(store, parent, reason):
        found += 1
        if item not in given:
            items.add(item)
    chosen = run_name(name) if name else _free_name(store, parent, reason)
    if name and not standing and (taken := find_manifest(store, chosen)):
        raise _taken(parent, reason, wishes, taken)
    return Redo(parent, reason, found, items, standing, others, chosen)


def make_child(
    store: ObjectStore, redo: Redo, wishes: Wishes, *, progress: Callable[[int], None]
) -> RunManifest:
    """Put the child up, short of its ids; return its run.json as it stands.

    Raises:
        ConflictError: another command was faster with the same name.
        StoreError: the store could not be read or written; the same command goes on.
        UsageError: this machine has no room for the rows.
    """
    parent, name = redo.parent, redo.name
    with spool_folder() as folder:
        found = copy_rows(store, parent, redo.items, wishes.sampling, folder)
        source = f"{parent.run}: {len(redo.items):,} {redo.reason}"
        wanted = replace(
            make_manifest(name, child_settings(parent, wishes, name), found, source),
            parent=parent.run,
            parent_fingerprint=parent.fingerprint,
            parent_reason=redo.reason,
            parent_items=pack_items(redo.items),
        )
        upload_shards(store, name, found, progress=progress)
    hit("redo.after_shards")
    note = dumps({"child": name, "reason": redo.reason})
    store.put(RunPaths(parent.run).child(name), note, content_type="application/json")
    hit("redo.after_note")
    stands = publish(store, wanted)
    hit("redo.after_run_json")
    if replace(stands, created=wanted.created, genq_version=wanted.genq_version) != wanted:
        raise _taken(parent, redo.reason, wishes, stands)
    return stands


def child_settings(parent: RunManifest, wishes: Wishes, name: RunName) -> RunSettings:
    """Return a child's settings: its parent's with the wishes, one sample, and seeds of its own.

    A child numbers its items anew; with its parent's seed it could repeat another sample of a row.
    """
    mine = parent.settings
    changed = wishes.over(mine, lambda _model: mine.model_fingerprint)
    later, limit = changed.retry_max_tokens, changed.sampling.max_tokens
    if later is not None and limit is not None and later <= limit:
        changed = replace(changed, retry_max_tokens=None)  # a retry must not have less room
    digest = hashlib.blake2b(f"{mine.seed}:{name}".encode(), digest_size=8).digest()
    return replace(changed, samples=1, seed=int.from_bytes(digest, "big") % _SEEDS)


def copy_rows(
    store: ObjectStore, parent: RunManifest, items: Bits, over: Sampling, folder: Path
) -> Spool:
    """Write the rows of items as shards into a folder, one row in memory at a time.

    What ``over`` names is taken out of the rows' own settings, which would go before the run's.

    Raises:
        StoreError: a prompt shard cannot be read.
    """
    named = [name for name in over.__dataclass_fields__ if getattr(over, name) is not None]
    found = Spool(folder)
    with Packer(found) as packer:
        for item, row in _rows_of(store, parent, items):
            own = replace(row.sampling, **dict.fromkeys(named))
            if own.seed is not None:
                own = replace(own, seed=derived_seed(own.seed, item, 0))  # no try has number 0
            line = dumps(replace(row, i=found.rows, sampling=own)) + b"\n"
            packer.add(line, Place(f"run {parent.run}", row.i + 1))
    return found


def _rows_of(store: ObjectStore, parent: RunManifest, items: Bits) -> Iterator[tuple[Item, Row]]:
    held, lines = -1, list[bytes]()
    for item in items:
        number, _ = row_of(Item(item), parent.settings.samples)
        shard, place = divmod(number, parent.shard_rows)
        key = RunPaths(parent.run).prompts(parent.fingerprint, shard)
        try:
            if shard != held:
                text = decompress(store.get(key), limit_bytes=_SHARD_LIMIT_BYTES)
                held, lines = shard, text.split(b"\n")
            yield Item(item), build(Row, loads(lines[place]))
        except (ValueError, IndexError) as error:
            raise StoreError(
                f"{store.url}/{key} is damaged.",
                why=str(error),
                fix=f"gen-producer verify {parent.run}",
            ) from error


def _free_name(store: ObjectStore, parent: RunManifest, reason: str) -> RunName:
    number = 1
    while True:
        tail = f"-{reason.replace('_', '-')}" + (f"-{number}" if number > 1 else "")
        name = run_name(parent.run[: 63 - len(tail)] + tail)
        if find_manifest(store, name) is None:
            return name
        number += 1


def _taken(
    parent: RunManifest, reason: str, wishes: Wishes, standing: RunManifest
) -> ConflictError:
    name = standing.run
    if (standing.parent, standing.parent_reason) != (parent.run, reason):
        why = f"{name} is another run, loaded {standing.created} from {standing.source}."
    else:
        wanted = child_settings(parent, wishes, name)
        why = "\n".join(settings_differences(standing.settings, wanted) or ["It has other items."])
    return ConflictError(
        f"{name} cannot be the child run.", why=why, fix="Leave --as out, or give another name."
    )
