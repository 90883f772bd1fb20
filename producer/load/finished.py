"""A finished run that is loaded again: is all of it still there, and if not, what is kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common import codec
from common.errors import VerifyError
from common.objectstore import ObjectMissingError, RunPaths
from common.prove import committed_items
from producer.stored_letters import stored_failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from common.objectstore import ObjectStore
    from common.parts.index import FoundPart
    from common.queue.failures import FailureInfo
    from common.records import RunManifest


@dataclass(frozen=True, slots=True)
class Loss:
    """What a finished run has lost since; with none of it, it is whole."""

    said: int = 0  # completions, by _SUCCESS
    completions: int = 0  # of them no part holds
    end: bool = False  # one of the last objects is gone, or does not fit the others
    dead: Callable[[], Iterable[FailureInfo]] = tuple  # the dead letters that are still told

    def __bool__(self) -> bool:
        return bool(self.completions or self.end)


def loss_of(store: ObjectStore, manifest: RunManifest) -> Loss:
    """Compare a run's end with its parts; indexes that are missing are written again meanwhile.

    Parts are taken at their indexes' word, as whoever reads the chain does: only `verify` opens
    each of them.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: a part is damaged, or one that others follow was deleted.
    """
    bitmap = committed_items(store, manifest, each=lambda part: _write_index(store, manifest, part))
    stored = int.from_bytes(bitmap, "big").bit_count()
    said = _success(store, manifest)
    listed = store.stat(RunPaths(manifest.run).manifest) is not None
    try:
        dead = {one.item for one in stored_failures(store, manifest)}
    except VerifyError:
        dead = None
    told = dead is not None and not any(bitmap[k // 8] & 0x80 >> k % 8 for k in dead)
    counts = {"items": manifest.items, "committed": stored, "dead": len(dead or ())}
    committed = said.get("committed")
    claimed = committed if isinstance(committed, int) else 0
    if told and listed and said | counts == said and stored + counts["dead"] == manifest.items:
        return Loss(said=stored)
    return Loss(
        said=claimed,
        completions=max(0, claimed - stored),
        end=claimed <= stored,
        dead=(lambda: stored_failures(store, manifest)) if told else tuple,
    )


def _write_index(store: ObjectStore, manifest: RunManifest, part: FoundPart) -> None:
    if not part.indexed:
        key = RunPaths(manifest.run).index(part.index.part)
        store.put(key, codec.dumps(part.index), content_type="application/json")


def _success(store: ObjectStore, manifest: RunManifest) -> dict[str, Any]:
    try:
        said = codec.loads(store.get(RunPaths(manifest.run).success))
    except (ObjectMissingError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
