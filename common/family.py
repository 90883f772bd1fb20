"""A run and its children as one: each committed item once, with the best completion there is of it.

A child run redoes committed items of its parent that are not `ok`, the truncated ones with a higher
limit for example. Its item j is the j-th of the parent's items that its run.json names. Where the
child's completion is `ok` it counts instead of the parent's; of several, the one nearest to the
run, and the oldest child's, counts. Nothing is copied and nothing is changed.

Promised: every committed item of the run comes exactly once, whatever is committed meanwhile. Not
promised: an order other than that of the parts; that a child which finishes later is seen.
"""

from __future__ import annotations

import base64
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, cast

from common import codec
from common.build import NewerVersionError, newer
from common.errors import UsageError, VerifyError
from common.ids import Item, RunName, row_of
from common.objectstore import ObjectMissingError, RunPaths
from common.parts import codec_for
from common.parts.bits import Bits
from common.parts.chain import read_format, refuse_foreign, walk
from common.parts.owner import Owner
from common.prove import read_manifest
from common.ranges import Ranges
from common.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from common.objectstore import ObjectStore
    from common.parts.index import FoundPart, PartIndex
    from common.records import Completion, RunManifest

NOT_COUNTED = -1


@dataclass(frozen=True, slots=True)
class FamilyPart:
    """One part of the run or of a descendant, and which of its completions count."""

    run: RunName  # in whose data/ it lies
    number: int
    key: str
    suffix: str
    index: PartIndex
    items: list[int]  # for each completion, in order: the run's item, or -1: it does not count


class Family:
    """A run with its descendants, as they were committed when it was read.

    Memory: eight bytes an item of a descendant, a bit an item of the run, one part.
    """

    def __init__(self, store: ObjectStore, manifest: RunManifest, members: list[_Member]) -> None:
        self.manifest = manifest
        self._store = store
        self._members = members
        self._claimed = Bits(manifest.items)
        for member in members:
            member.claim(store, self._claimed)

    @classmethod
    def of(cls, store: ObjectStore, run: RunName) -> Family:
        """Return the family of a run.

        Of the parts only the descendants' are looked at: indexes, and verdicts where they differ.

        Raises:
            ObjectMissingError: there is no such run.
            StoreError: the store could not be asked.
            VerifyError: a run.json or a descendant's part is damaged.
        """
        manifest = read_manifest(store, run)
        return cls(store, manifest, list(_descendants(store, manifest, None, {run})))

    @property
    def children(self) -> list[RunManifest]:
        """All descendants, parents before children, older ones before younger."""
        return [member.manifest for member in self._members]

    def completions(self) -> Iterator[Completion]:
        """Yield the completion of every committed item, of whatever class, as the run numbers it.

        Raises:
            StoreError: the store could not be asked, or a newer sink wrote a part.
            VerifyError: a part is damaged.
        """
        for part in self.parts():
            yield from self.read(part)

    def parts(self) -> Iterator[FamilyPart]:
        """Yield the parts: the run's own in their order, then each descendant's.

        Parts of which nothing counts are left out. Raises as `completions`.
        """
        for found in _walk(self._store, self.manifest):
            yield _part(
                self.manifest.run,
                found,
                [NOT_COUNTED if k in self._claimed else k for k in found.index.items],
            )
        for member in self._members:
            for found in _walk(self._store, member.manifest) if len(member.taken) else ():
                items = member.counted(found.index.items)
                if max(items, default=NOT_COUNTED) != NOT_COUNTED:
                    yield _part(member.manifest.run, found, items)

    def read(self, part: FamilyPart) -> Iterator[Completion]:
        """Yield the completions of a part that count, under the run's numbers.

        Raises as `completions`.
        """
        samples = self.manifest.settings.samples
        try:
            decoded = codec_for(part.suffix).decode(self._store.get(part.key))
            for item, completion in zip(part.items, decoded, strict=True):
                if item != NOT_COUNTED:
                    row, sample = row_of(Item(item), samples)
                    yield replace(completion, k=Item(item), row=row, sample=sample)
        except NewerVersionError as error:
            raise newer(f"{self._store.url}/{part.key}", error) from error
        except ValueError as error:
            raise _damaged(self._store, part.key, error) from error


class _Member:
    """A descendant: which items of the run its own items redo, and which of them count."""

    def __init__(self, manifest: RunManifest, roots: Sequence[int]) -> None:
        self.manifest = manifest
        self.roots = roots
        self.taken = Bits(manifest.items)

    def claim(self, store: ObjectStore, claimed: Bits) -> None:
        """Take the items that are `ok` here and were not before."""
        for item in items_of_class(store, self.manifest, Verdict.OK):
            if claimed.add(self.roots[item]):
                self.taken.add(item)

    def counted(self, items: Sequence[int]) -> list[int]:
        return [self.roots[k] if k in self.taken else NOT_COUNTED for k in items]


def children_of(store: ObjectStore, manifest: RunManifest) -> list[RunManifest]:
    """Return the child runs that a run has, the oldest first.

    One whose load was killed before its run.json was there does not exist yet.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: a run.json is damaged.
    """
    paths = RunPaths(manifest.run)
    found = []
    for stat in store.list(paths.children_prefix):
        try:
            child = read_manifest(store, paths.child_name(stat.key))
        except (ObjectMissingError, UsageError):  # the latter: the key names no run
            continue
        if (child.parent, child.parent_fingerprint) == (manifest.run, manifest.fingerprint):
            found.append(child)
    return sorted(found, key=lambda child: (child.created, child.run))


def items_of_class(store: ObjectStore, manifest: RunManifest, verdict: str) -> Iterator[Item]:
    """Yield the committed items of a class, in the order of the parts.

    A part is only looked into where its index tells of several classes, and then at its verdicts.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: a part is damaged.
    """
    for found in _walk(store, manifest):
        classes = found.index.verdicts
        if set(classes) == {verdict}:
            yield from (Item(k) for k in found.index.items)
        elif verdict in classes:
            yield from _looked_up(store, found, verdict)


def committed_items(store: ObjectStore, manifest: RunManifest) -> Iterator[Item]:
    """Yield the committed items of whatever class. Raises as `items_of_class`."""
    for found in _walk(store, manifest):
        yield from (Item(k) for k in found.index.items)


def pack_items(items: Bits) -> str:
    """Return a set of items as a run.json holds it: its bitmap, by zstd and base64."""
    return base64.b64encode(codec.compress(items.to_bytes())).decode()


def parent_items(child: RunManifest, size: int) -> Bits:
    """Return which items of its parent, of so many, a child redoes: its own are in their order.

    Raises:
        VerifyError: its run.json is damaged.
    """
    try:
        packed = base64.b64decode(child.parent_items, validate=True)
        bitmap = codec.decompress(packed, limit_bytes=size // 8 + 1)
        items = Bits(size, bitmap)
    except ValueError as error:
        raise _misfit(child, str(error)) from error
    if len(items) != child.items:
        why = f"It names {len(items)} items of {child.parent} and has {child.items} itself."
        raise _misfit(child, why)
    return items


def _misfit(child: RunManifest, why: str) -> VerifyError:
    paths = RunPaths(child.run)
    return VerifyError(
        f"{paths.run_json} is damaged.",
        why=why,
        fix="Put it back from a copy: an earlier version in the bucket, or a backup.\nWithout one,"
        f" delete {RunPaths(RunName(child.parent)).child(child.run)}: then {child.parent} is read"
        f" without what {child.run} redid.",
    )


def _descendants(
    store: ObjectStore, manifest: RunManifest, roots: Sequence[int] | None, seen: set[str]
) -> Iterator[_Member]:
    """Yield the members below a run, whose own items are ``roots``; None: they are the roots."""
    for child in children_of(store, manifest):
        if child.run in seen:
            continue
        seen.add(child.run)
        items = parent_items(child, manifest.items)
        its_roots = array("Q", items if roots is None else (roots[k] for k in items))
        yield _Member(child, its_roots)
        yield from _descendants(store, child, its_roots, seen)


def _walk(store: ObjectStore, manifest: RunManifest) -> Iterator[FoundPart]:
    paths, owner = RunPaths(manifest.run), Owner.of(manifest)
    suffix = read_format(store, paths)
    for found in walk(store, paths, suffix) if suffix is not None else ():
        refuse_foreign(store, paths, found.index, owner)
        yield found


def _looked_up(store: ObjectStore, found: FoundPart, verdict: str) -> Iterator[Item]:
    try:
        source = cast("BinaryIO", Ranges(store, found.stat))
        for row in codec_for(found.index.suffix).open(source).rows(("k", "verdict")):
            if row["verdict"] == verdict:
                yield Item(row["k"])
    except ValueError as error:
        raise _damaged(store, found.stat.key, error) from error


def _part(run: RunName, found: FoundPart, items: list[int]) -> FamilyPart:
    index = found.index
    return FamilyPart(run, index.part, found.stat.key, index.suffix, index, items)


def _damaged(store: ObjectStore, key: str, error: Exception) -> VerifyError:
    run = key.partition("/")[0]
    return VerifyError(
        f"{store.url}/{key} is damaged.", why=str(error), fix=f"gen-producer verify {run}"
    )
