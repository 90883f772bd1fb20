"""The chain of a run's parts: numbers without gaps, one format.

Part s is only ever created by a writer that has seen every part before it, so whoever has walked
the chain to its end knows every committed item. A run's format is fixed by its first writer in
one conditional PUT, since parts of two formats would be two chains. The same object says whose the
parts are (:mod:`common.parts.owner`).
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from common import codec
from common.build import build
from common.errors import StoreError, VerifyError
from common.objectstore import ObjectMissingError
from common.parts import SUFFIXES, WRITER, codec_for
from common.parts.index import FoundPart, find_part
from common.parts.owner import Owner, mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.ids import RunName
    from common.objectstore import ObjectStat, ObjectStore, RunPaths
    from common.parts.index import PartIndex

_PARALLEL = 8
_WINDOW = 32
_PART = re.compile(r"part-(\d{8})\.(.+)")
FOREIGN = "a part of another run"


def format_key(paths: RunPaths) -> str:
    """Key of the object that fixes the run's format."""
    return f"{paths.run}/format.json"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a run's folder tells of its parts without run.json."""

    parts: bool  # there is one
    owner: Owner | None = None  # by format.json
    mark: str = ""  # of the owner, by the first part; "" also where an older release wrote it

    def disowned_by(self, owner: Owner) -> bool:
        """Return whether the folder says that it is another run's than ``owner``'s."""
        return self.owner not in {None, owner} or self.mark not in {"", owner.mark}


def read_format(store: ObjectStore, paths: RunPaths) -> str | None:
    """Return the suffix of the run's parts, or None while none was ever fixed.

    Where format.json was deleted, the parts themselves tell it.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: the object is not ours, or names a format that is not known.
    """
    fixed = _fixed_format(store, paths)
    return fixed[0] if fixed else _format_of(paths, _first_part(store, paths))


def read_contents(store: ObjectStore, paths: RunPaths) -> Contents:
    """Return what a run's folder tells of its parts.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: format.json is damaged, or names a format that is not known.
    """
    fixed, first = _fixed_format(store, paths), _first_part(store, paths)
    owner = fixed[1] if fixed else None
    return Contents(first is not None, owner, _mark(store, paths, first) if first else "")


def _first_part(store: ObjectStore, paths: RunPaths) -> ObjectStat | None:
    return next((stat for stat in store.list(paths.data_prefix) if _format_of(paths, stat)), None)


def _format_of(paths: RunPaths, stat: ObjectStat | None) -> str | None:
    named = part_number(paths, stat.key) if stat else None
    return named[1] if named and named[1] in SUFFIXES else None


def _mark(store: ObjectStore, paths: RunPaths, listed: ObjectStat) -> str:
    """Return the mark of a part, from its body if a copy has lost the metadata."""
    stat = store.stat(listed.key)
    token = stat.metadata.get(WRITER) if stat else ""
    if token is None:
        try:
            token = codec_for(_format_of(paths, listed) or "").token_of(store.get(listed.key))
        except ValueError:  # who reads the part finds it damaged, and says so
            token = ""
    return mark_of(token)


def _fixed_format(store: ObjectStore, paths: RunPaths) -> tuple[str, Owner | None] | None:
    """Return what format.json says: suffix and owner, which an older release did not name."""
    try:
        raw = codec.loads(store.get(format_key(paths)))
        suffix = str(raw["suffix"])
        owner = build(Owner, raw["owner"]) if raw.get("owner") else None
    except ObjectMissingError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise VerifyError(
            f"{store.url}/{format_key(paths)} is damaged.",
            why=str(error),
            fix="Delete it: the parts tell their format, and a sink writes it again.",
        ) from error
    if suffix not in SUFFIXES:
        raise VerifyError(
            f"{paths.run} is written as {suffix}, which this version of genq does not know.",
            fix="Install a newer genq.",
        )
    return suffix, owner


def fix_format(store: ObjectStore, paths: RunPaths, suffix: str, owner: Owner | None = None) -> str:
    """Return the suffix that the run's parts have from now on: ``suffix`` if none was fixed yet.

    From then on format.json says that the parts are ``owner``'s, unless there are some already that
    an older release wrote: whose those are is not known.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: what is there is not ``owner``'s.
    """
    found = _fixed_format(store, paths)
    if found is None:
        first = _first_part(store, paths)
        mark = _mark(store, paths, first) if first else ""
        if owner and mark not in {"", owner.mark}:
            assert first is not None  # it has a mark
            raise foreign_part(store, paths, first.key)
        chosen = {"suffix": _format_of(paths, first) or suffix}
        named = {"owner": asdict(owner)} if owner and (mark or first is None) else {}
        data = codec.dumps(chosen | named)
        store.create(format_key(paths), data, content_type="application/json")
        found = _fixed_format(store, paths)
    if found is None:
        raise StoreError(f"Cannot write {store.url}/{format_key(paths)}.")
    if owner and found[1] not in {None, owner}:
        raise VerifyError(
            f"{store.url}/{format_key(paths)} is another run's.",
            why=f"It was written for other rows or settings than {store.url}/{paths.run_json}"
            " names, or under another name.",
            fix=f"gen-producer verify {paths.run}    says what of the folder is another run's.",
        )
    return found[0]


def foreign_part(store: ObjectStore, paths: RunPaths, key: str) -> VerifyError:
    """Return the error that refuses a part of another run."""
    return VerifyError(
        f"{store.url}/{key} is {FOREIGN}.",
        why=f"It was written for other rows or settings than {store.url}/{paths.run_json} names,"
        " or under another name.",
        fix=f"If {paths.run_json} is the wrong one, put that back. If the part is:\n"
        + put_back(paths.run),
    )


def refuse_foreign(store: ObjectStore, paths: RunPaths, index: PartIndex, owner: Owner) -> None:
    """Return if a part is ``owner``'s, or of an older release, whose parts name nobody.

    Raises:
        VerifyError: it is another run's.
    """
    if owner.disowns(index.token):
        raise foreign_part(store, paths, paths.part(index.part, index.suffix))


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
