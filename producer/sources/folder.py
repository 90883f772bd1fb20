"""Which files of a folder are its data set: as ``datasets`` saved it, or as it lies there.

Works on names alone, so a folder on disk and one on object storage are the same to it. Never
guesses where that could double rows or mix sets: it asks for the split, or for the files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from common.codec import loads
from common.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PACKED = (".gz", ".zst")
_KINDS = {
    ".jsonl": "JSON",
    ".ndjson": "JSON",
    ".json": "JSON",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".csv": "CSV",
    ".tsv": "CSV",
}
SUFFIXES = (*PACKED, *_KINDS)
_DICTIONARY, _STATE = "dataset_dict.json", "state.json"
# What is said of data and is none: left by `datasets` and by the hub.
_BESIDE = {_DICTIONARY, _STATE, "dataset_info.json", "dataset_infos.json", "config.json"}
_SPLIT = re.compile(r"(?:^|[/._-])(train|test|validation|valid|val|dev|eval)(?=[/._-])")


def data_files(
    place: str, names: Sequence[str], read: Callable[[str], bytes], split: str | None
) -> list[str]:
    """Return the names, of those below the folder ``place``, that hold its rows, in order.

    ``read`` returns a small file's bytes; ``split`` is the one wanted, None where none is named.

    Raises:
        InputError: there is no data, no such split, or more than one thing it could be.
    """
    if _DICTIONARY in names:
        splits = [str(name) for name in _read(place, _DICTIONARY, read).get("splits", [])]
        chosen = f"{_choose(place, splits, split)}/"
        inside = f"{place.rstrip('/')}/{chosen}"
        below = [name.removeprefix(chosen) for name in names if name.startswith(chosen)]
        inner = data_files(inside, below, lambda name: read(chosen + name), None)
        return [chosen + name for name in inner]
    if _STATE in names:
        return _saved(place, names, _read(place, _STATE, read), split)
    found = sorted(name for name in names if _is_data(name))
    splits = sorted({match[1] for name in found if (match := _SPLIT.search(name))})
    if split is not None or len(splits) > 1:
        chosen = _choose(place, splits, split)
        found = [name for name in found if chosen in _SPLIT.findall(name)]
    kinds = sorted({_kind(name) for name in found})
    if len(kinds) > 1:
        raise InputError(
            f"{place} holds {' and '.join(kinds)} files.",
            why="They could be the same rows twice.",
            fix=f"Name those that are meant, for example '{place.rstrip('/')}/*.jsonl'",
        )
    if not found:
        raise InputError(
            f"{place} holds no data.",
            why=f"{len(names):,} files, none of them named *{', *'.join(_KINDS)}.",
        )
    return found


def suffix_of(name: str) -> str:
    """Return what a name says of its data, without what it says of the packing."""
    for packing in PACKED:
        name = name.removesuffix(packing)
    return next((suffix for suffix in _KINDS if name.lower().endswith(suffix)), "")


def _saved(place: str, names: Sequence[str], state: dict[str, Any], split: str | None) -> list[str]:
    """Return the files of a set that ``save_to_disk`` wrote, in its order."""
    if split is not None and split != state.get("_split"):
        raise InputError(
            f"{place} holds one split ({state.get('_split') or 'without a name'}), not {split}.",
            fix="Leave --split out.",
        )
    listed = [str(one.get("filename")) for one in state.get("_data_files") or []]
    if state.get("_indices_data_files") or not listed:
        raise InputError(
            f"{place} cannot be read.",
            why="Its state.json names no data, or an order of rows that stands in another file.",
            fix="Save it again with datasets >= 2.0: flatten_indices().save_to_disk(...)",
        )
    if missing := [name for name in listed if name not in names]:
        raise InputError(
            f"{place.rstrip('/')}/{missing[0]} is not there.",
            why=f"state.json names {len(listed):,} files, and {len(missing):,} are missing.",
            fix="Copy the folder again.",
        )
    return listed


def _choose(place: str, splits: list[str], wanted: str | None) -> str:
    if wanted is None and len(splits) == 1:
        return splits[0]
    if wanted is not None and wanted in splits:
        return wanted
    known = ", ".join(splits) or "none"
    what = f"no split {wanted!r}" if wanted else f"{len(splits)} splits"
    raise InputError(
        f"{place} holds {what}.",
        why=f"Its splits: {known}.",
        fix=f"--split {splits[0]}" if splits else "Leave --split out.",
    )


def _read(place: str, name: str, read: Callable[[str], bytes]) -> dict[str, Any]:
    try:
        found = loads(read(name))
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise InputError(f"{place.rstrip('/')}/{name} cannot be read.", why="It is no JSON object.")
    return found


def _is_data(name: str) -> bool:
    *folders, last = name.split("/")
    hidden = any(part.startswith((".", "_")) for part in (*folders, last))
    return not hidden and last not in _BESIDE and bool(suffix_of(last))


def _kind(name: str) -> str:
    return _KINDS[suffix_of(name)]
