"""What became of a run's child runs, from their indexes: which of its completions they replace."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from common.family import NOT_COUNTED, Family
from common.losses import Ends
from common.objectstore import RunPaths
from common.parts.chain import read_format, walk
from common.records import Verdict
from producer.report.data import Child

if TYPE_CHECKING:
    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.records import RunManifest


def children_of(store: ObjectStore, run: RunName) -> list[Child]:
    """Return the descendants of a run, parents before children.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: a descendant's run.json or a part of it is damaged, or a part was deleted.
    """
    family = Family.of(store, run)
    if not family.children:
        return []
    ends = Ends(store, [child.run for child in family.children])
    taken: Counter[str] = Counter()
    for part in family.parts():
        taken[part.run] += sum(item != NOT_COUNTED for item in part.items)
    return [_child(store, child, taken[child.run], ends) for child in family.children]


def _child(store: ObjectStore, manifest: RunManifest, taken: int, ends: Ends) -> Child:
    verdicts: Counter[str] = Counter()
    paths = RunPaths(manifest.run)
    suffix = read_format(store, paths)
    for found in walk(store, paths, suffix) if suffix else ():
        verdicts.update(found.index.verdicts)
    return Child(
        run=manifest.run,
        parent=manifest.parent,
        redone=manifest.parent_reason,
        items=manifest.items,
        committed=verdicts.total(),
        ok=verdicts[Verdict.OK],
        taken=taken,
        lost=ends.lost(manifest.run, verdicts.total()),
    )
