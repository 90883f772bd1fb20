"""What the words of a command line mean as places of a data set, and how each is opened."""

from __future__ import annotations

import io
import re
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from common.errors import InputError
from common.ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from common.objectstore import ObjectStore

STDIN = "-"
HUB_SCHEME = "hf://"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_S3 = "s3://"
_RANGE_BYTES = 4 * 2**20
_SUFFIXES = (".gz", ".zst", ".jsonl", ".json", ".ndjson", ".parquet")


@dataclass(frozen=True, slots=True)
class Source:
    """One stream of a data set; ``open`` is None where the hub reads it."""

    name: str
    open: Callable[[], AbstractContextManager[BinaryIO]] | None


def sources_of(
    datasets: tuple[str, ...], open_bucket: Callable[[str], ObjectStore]
) -> list[Source]:
    """Return the streams that ``datasets`` name, in order; the matches of a glob are sorted.

    Raises:
        InputError: a file is not there, or a glob matches nothing.
    """
    return [source for name in datasets for source in _expand(name, open_bucket)]


def stem_of(dataset: str) -> str:
    """Return the part of a data set's name that could name a run."""
    name = Path(urlsplit(dataset).path if "://" in dataset else dataset).name
    while name.endswith(_SUFFIXES):
        name = name.rpartition(".")[0]
    return name.strip("*?.-_")


def _expand(name: str, open_bucket: Callable[[str], ObjectStore]) -> Iterator[Source]:
    if name == STDIN:
        yield Source(STDIN, lambda: nullcontext(sys.stdin.buffer))
    elif name.startswith(_S3):
        yield from _from_s3(name, open_bucket)
    elif name.startswith(HUB_SCHEME):
        yield Source(name, None)
    elif "://" in name:
        raise InputError(
            f"{name} cannot be read.",
            why="Known places: a file, a glob, -, s3://..., hf://...",
            fix=f"curl -L {name} | gen-producer load - --run NAME",
        )
    else:
        yield from _from_disk(name)


def _from_disk(name: str) -> Iterator[Source]:
    path = Path(name)
    if path.is_dir():
        raise InputError(
            f"{name} is a folder.", fix=f"Name its files: '{name.rstrip('/')}/*.jsonl'"
        )
    if path.exists() or not has_magic(name):
        if not path.exists() and HUB_NAME.fullmatch(name) and not name.endswith(_SUFFIXES):
            yield Source(HUB_SCHEME + name, None)
            return
        yield Source(name, lambda: _open_file(path))
        return
    found = sorted(match for match in glob(name, recursive=True) if Path(match).is_file())  # noqa: PTH207 - a user's absolute pattern
    if not found:
        raise InputError(f"No file matches {name}.", fix="ls -l " + name)
    for match in found:
        yield Source(match, lambda match=match: _open_file(Path(match)))  # type: ignore[misc]


@contextmanager
def _open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and make sure at the end that it is still the one that was opened."""
    try:
        with path.open("rb") as file:
            before = _identity(path)
            yield file
            after = _identity(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read.", why=error.strerror or str(error)) from error
    if before != after:
        raise InputError(
            f"{path} was changed while it was read.",
            why="Rows of two versions would be mixed. Nothing was queued.",
            fix="Give the command again once the file is complete.",
        )


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _from_s3(name: str, open_bucket: Callable[[str], ObjectStore]) -> Iterator[Source]:
    bucket, _, key = name.removeprefix(_S3).partition("/")
    store = open_bucket(bucket)
    if not has_magic(key):
        yield Source(name, lambda: nullcontext(_open_object(store, key)))
        return
    fixed = key[: min(key.index(sign) for sign in "*?[" if sign in key)]
    found = [stat.key for stat in store.list(fixed) if fnmatchcase(stat.key, key)]
    if not found:
        raise InputError(
            f"No object matches {name}.",
            why="The listing of the bucket is the one that the endpoint gives.",
        )
    for match in found:
        yield Source(
            f"{_S3}{bucket}/{match}",
            lambda match=match: nullcontext(_open_object(store, match)),  # type: ignore[misc]
        )


def _open_object(store: ObjectStore, key: str) -> BinaryIO:
    found = store.stat(key)
    if found is None:
        raise InputError(f"{store.url}/{key} is not there.")
    return io.BufferedReader(Ranges(store, found), _RANGE_BYTES)
