"""The chain of a run's parts: numbers without gaps, one format.

Part s is only ever created by a writer that has seen every part before it, so whoever has walked
the chain to its end knows every committed item. A run's format is fixed by its first writer in
one conditional PUT, since parts of two formats would be two chains.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from common import codec
from common.errors import StoreError, VerifyError
from common.objectstore import ObjectMissingError
from common.parts import SUFFIXES
from common.parts.index import FoundPart, find_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.ids import RunName
    from common.objectstore import ObjectStore, RunPaths

_PARALLEL = 8
_WINDOW = 32
_PART = re.compile(r"part-(\d{8})\.(.+)")


def format_key(paths: RunPaths) -> str:
    """Key of the object that fixes the run's format."""
    return f"{paths.run}/format.json"


def read_format(store: ObjectStore, paths: RunPaths) -> str | None:
    """Return the suffix of the run's parts, or None while none was ever fixed.

    Where format.json was deleted, the parts themselves tell it.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: the object is not ours, or names a format that is not known.
    """
    return _fixed_format(store, paths) or _format_of_parts(store, paths)


def _format_of_parts(store: ObjectStore, paths: RunPaths) -> str | None:
    named = (part_number(paths, stat.key) for stat in store.list(paths.data_prefix))
    return next((one[1] for one in named if one and one[1] in SUFFIXES), None)


def _fixed_format(store: ObjectStore, paths: RunPaths) -> str | None:
    try:
        raw = codec.loads(store.get(format_key(paths)))
        suffix = str(raw["suffix"])
    except ObjectMissingError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise VerifyError(f"{store.url}/{format_key(paths)} is damaged.", why=str(error)) from error
    if suffix not in SUFFIXES:
        raise VerifyError(
            f"{paths.run} is written as {suffix}, which this version of genq does not know.",
            fix="Install a newer genq.",
        )
    return suffix


def fix_format(store: ObjectStore, paths: RunPaths, suffix: str) -> str:
    """Return the suffix that the run's parts have from now on: ``suffix`` if none was fixed yet.

    Raises:
        StoreError: the store could not be asked.
    """
    found = _fixed_format(store, paths)
    if found is None:
        chosen = codec.dumps({"suffix": _format_of_parts(store, paths) or suffix})
        store.create(format_key(paths), chosen, content_type="application/json")
        found = _fixed_format(store, paths)
    if found is None:
        raise StoreError(f"Cannot write {store.url}/{format_key(paths)}.")
    return found


def part_number(paths: RunPaths, key: str) -> tuple[int, str] | None:
    """Return number and suffix of a key below ``data/``, or None if it does not name a part."""
    match = _PART.fullmatch(key.removeprefix(paths.data_prefix))
    return (int(match[1]), match[2]) if match else None


def walk(
    store: ObjectStore, paths: RunPaths, suffix: str, *, start: int = 0
) -> Iterator[FoundPart]:
    """Yield the parts from ``start`` to the end of the chain.

    The end is where a part is looked up and is not there; no listing is trusted for it.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: a part is damaged.
    """
    window = 1  # a walk that starts near the end asks little
    with ThreadPoolExecutor(_PARALLEL) as pool:
        while True:
            numbers = range(start, start + window)
            for found in pool.map(lambda n: find_part(store, paths, n, suffix), numbers):
                if found is None:
                    return
                yield found
            start += window
            window = min(window * 2, _WINDOW)


def chain_end(store: ObjectStore, paths: RunPaths, suffix: str, *, start: int = 0) -> int:
    """Return how many parts the chain has, of which ``start`` are known to be there.

    As it has no gaps, some twenty look-ups tell it of a million parts, and one where it is known.

    Raises:
        StoreError: the store could not be asked.
    """

    def there(number: int) -> bool:
        return store.stat(paths.part(number, suffix)) is not None

    low, step = start, 1
    while there(low + step - 1):
        low, step = low + step, 2 * step
    high = low + step - 1  # is not there; those before `low` are
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if there(middle) else (low, middle)
    return low


def put_back(run: RunName) -> str:
    """Return what to do about a part that is damaged, or was deleted from among others."""
    return (
        "Put it back from a copy: an earlier version in the bucket, or a backup.\n"
        "Without one, delete it and all parts behind it; what they held is then made again by:\n"
        f"gen-producer load --run {run}"
    )


def check_end(store: ObjectStore, paths: RunPaths, suffix: str, end: int) -> None:
    """Check that nothing lies behind the end of the chain, as a deleted part would leave it.

    Raises:
        VerifyError: there is a part behind ``end``; to write into the gap could repeat its items.
    """
    for stat in store.list(paths.data_prefix, start_after=paths.part(end, suffix)):
        named = part_number(paths, stat.key)
        if named is None or named[1] != suffix or named[0] <= end:
            continue
        # Another writer may have filled the end since it was looked up.
        if store.stat(paths.part(end, suffix)) is not None:
            return
        raise VerifyError(
            f"{store.url}/{paths.part(end, suffix)} is missing, but {stat.key} is there.",
            why="Parts are numbered without gaps, so one was deleted.",
            fix=put_back(paths.run),
        )
