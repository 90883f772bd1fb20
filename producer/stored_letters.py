"""Dead letters as failed.jsonl has them, read line by line."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from common import codec
from common.errors import VerifyError
from common.ids import Item, row_of
from common.objectstore import RunPaths
from common.queue.failures import FailureInfo
from common.ranges import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.objectstore import ObjectStat, ObjectStore
    from common.records import RunManifest


def letters_of(
    store: ObjectStore, manifest: RunManifest, found: ObjectStat
) -> Iterator[dict[str, Any]]:
    """Yield the letters of failed.jsonl, ``found``, each with all of its fields.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: a line is damaged.
    """
    for number, line in enumerate(lines_of(store, found), start=1):
        try:
            letter = _whole(codec.loads(line), manifest)
        except (ValueError, KeyError, TypeError) as error:
            raise VerifyError(
                f"{store.url}/{found.key}:{number} is no dead letter.",
                why=str(error),
                fix=f"gen-producer verify {manifest.run}",
            ) from error
        yield letter


def _whole(letter: Any, manifest: RunManifest) -> dict[str, Any]:
    item = int(letter["k"])
    if not 0 <= item < manifest.items:
        raise ValueError(f"the run has no item {item}")
    row, sample = row_of(Item(item), manifest.settings.samples)
    absent: dict[str, Any] = {"row_id": None, "text": "", "worker": "", "at": "", "messages": []}
    known: dict[str, Any] = {
        "k": item,
        "row": row,
        "sample": sample,
        "verdict": str(letter["verdict"]),
    }
    return {**absent, **letter, **known}


def stored_failures(store: ObjectStore, manifest: RunManifest) -> Iterator[FailureInfo]:
    """Yield the dead letters of a run's last end as Redis would tell them; none without a file.

    What they say holds while _SUCCESS is there: of a run that goes on they tell an earlier end.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: a line is damaged.
    """
    found = store.stat(RunPaths(manifest.run).failed)
    for letter in letters_of(store, manifest, found) if found else ():
        yield FailureInfo(
            Item(letter["k"]),
            letter["verdict"],
            str(letter["text"]),
            str(letter["worker"]),
            _moment(letter["at"]),
        )


def _moment(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
