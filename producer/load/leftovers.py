"""What lies in a run's folder though its run.json is gone: is it of the rows that are loaded now?

Completions that are in data/ count for whatever run is loaded there. So a load puts a run.json up
only where they are of its own rows and settings: then it is the way to mend a lost run.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import ConflictError
from common.objectstore import RunPaths
from common.parts.chain import read_contents
from common.parts.owner import Owner

if TYPE_CHECKING:
    from common.objectstore import ObjectStore
    from common.parts.chain import Contents
    from common.records import RunManifest


def refuse_leftovers(store: ObjectStore, manifest: RunManifest) -> None:
    """Return if nothing in the run's folder is of other rows or settings than ``manifest``'s.

    Parts of an older release do not say whose they are. They count as the run's own where the
    prompts of the very same rows lie beside them.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: format.json is damaged.
        ConflictError: something is another's; nothing was changed.
    """
    paths, owner = RunPaths(manifest.run), Owner.of(manifest)
    there = read_contents(store, paths)
    if there.disowned_by(owner):
        why = _difference(there, owner)
    elif there.parts and not (there.owner or there.mark) and not _has_prompts(store, manifest):
        why = (
            "An older release wrote them without saying of which rows, and the prompts of these"
            f" rows ({manifest.fingerprint[:12]}) are not there."
        )
    else:
        return
    run, folder = manifest.run, f"{store.url}/{manifest.run}/"
    raise ConflictError(
        f"{folder} holds what is not of these rows and settings, and no run.json.",
        why=f"{why}\nThe completions in data/ would be taken for answers to these rows.",
        fix=f"Choose another name: --run {run[:60]}-2\n"
        f"Or put run.json back: from a copy, or by a load of the rows and flags of that run.\n"
        f"Or, if nobody needs what is there, delete all of {folder}",
    )


def _difference(there: Contents, owner: Owner) -> str:
    """Return in words what another run there differs in, as far as it says."""
    other = there.owner
    if other is None or other == owner:  # the parts alone tell, by a digest of all
        return "The parts there were written for other rows or settings, or under another name."
    if other.run != owner.run:
        return f"format.json says that it is of run {other.run}."
    if other.fingerprint != owner.fingerprint:
        return (
            f"format.json names rows of fingerprint {other.fingerprint[:12]};"
            f" these are {owner.fingerprint[:12]}."
        )
    return "The rows are the same; a setting is another, as --temperature or --samples may be."


def _has_prompts(store: ObjectStore, manifest: RunManifest) -> bool:
    prefix = RunPaths(manifest.run).prompts(manifest.fingerprint, 0).rpartition("/")[0] + "/"
    return any(True for _ in store.list(prefix))
