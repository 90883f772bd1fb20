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
from stat import S_ISREG
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from common.errors import InputError, UsageError
from common.ranges import Ranges
from producer.sources.folder import SUFFIXES, data_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from common.objectstore import ObjectStore

STDIN = "-"
HUB_SCHEME = "hf://"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_S3 = "s3://"
_RANGE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Source:
    """One stream of a data set; ``open`` is None where the hub reads it."""

    name: str
    open: Callable[[], AbstractContextManager[BinaryIO]] | None


def sources_of(
    datasets: tuple[str, ...],
    open_bucket: Callable[[str], ObjectStore],
    *,
    split: str | None = None,
) -> list[Source]:
    """Return the streams that ``datasets`` name, in order; the matches of a glob are sorted.

    ``split`` is that of folders and of data sets of the hub.

    Raises:
        InputError: a file is not there, a glob matches nothing, or a folder holds no one data set.
        UsageError: a split is named of something that has none.
        StoreError: object storage cannot be asked.
    """
    return [source for name in datasets for source in _expand(name, open_bucket, split)]


def stem_of(dataset: str) -> str:
    """Return the part of a data set's name that could name a run."""
    name = Path(urlsplit(dataset).path if "://" in dataset else dataset).name
    while name.endswith(SUFFIXES):
        name = name.rpartition(".")[0]
    return name.strip("*?.-_")


def _expand(
    name: str, open_bucket: Callable[[str], ObjectStore], split: str | None
) -> Iterator[Source]:
    if name.startswith(HUB_SCHEME):
        yield _on_the_hub(name, split)
    elif name.startswith(_S3):
        yield from _from_s3(name, open_bucket, split)
    elif Path(name).is_dir():
        yield from _from_folder(name, split)
    elif HUB_NAME.fullmatch(name) and not Path(name).exists() and not name.endswith(SUFFIXES):
        yield _on_the_hub(HUB_SCHEME + name, split)
    elif split is not None:
        raise _no_split(name, split)
    elif name == STDIN:
        yield Source(STDIN, lambda: nullcontext(sys.stdin.buffer))
    elif "://" in name:
        raise InputError(
            f"{name} cannot be read.",
            why="Known places: a file, a folder, a glob, -, s3://..., hf://...",
            fix=f"curl -L {name} | gen-producer load - --run NAME",
        )
    else:
        yield from _from_disk(name)


def _no_split(name: str, split: str) -> UsageError:
    return UsageError(
        f"{name} has no splits, and --split {split} is given.",
        why="Folders and data sets of the hub have some.",
        fix="Leave --split out.",
    )


def _on_the_hub(address: str, split: str | None) -> Source:
    if split is not None:
        address += f"{'&' if '?' in address else '?'}split={split}"
    return Source(address, None)


def _from_folder(name: str, split: str | None) -> Iterator[Source]:
    folder = Path(name)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    for found in data_files(name, names, lambda one: (folder / one).read_bytes(), split):
        yield _file(folder / found)


def _file(path: Path) -> Source:
    return Source(str(path), lambda: _open_file(path))


def _from_disk(name: str) -> Iterator[Source]:
    path = Path(name)
    if path.exists() or not has_magic(name):
        yield _file(path)
        return
    found = sorted(match for match in glob(name, recursive=True) if Path(match).is_file())  # noqa: PTH207 - a user's absolute pattern
    if not found:
        raise InputError(f"No file matches {name}.", fix="ls -l " + name)
    for match in found:
        yield _file(Path(match))


@contextmanager
def _open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and make sure at the end that it is still the one that was opened."""
    try:
        with path.open("rb") as file:
            before = _identity(path)
            yield file
            after = _identity(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read.",
            why=error.strerror or str(error),
            fix=f"ls -l {path.parent}",
        ) from error
    if before != after:
        raise InputError(
            f"{path} was changed while it was read.",
            why="Rows of two versions would be mixed. Nothing was queued.",
            fix="Give the command again once the file is complete.",
        )


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return what another version of a file has otherwise; None: a pipe, which changes as read."""
    found = path.stat()
    if not S_ISREG(found.st_mode):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _from_s3(
    name: str, open_bucket: Callable[[str], ObjectStore], split: str | None
) -> Iterator[Source]:
    bucket, _, key = name.removeprefix(_S3).partition("/")
    store = open_bucket(bucket)
    if key.endswith("/") or not key:
        names = [stat.key.removeprefix(key) for stat in store.list(key)]
        for found in data_files(name, names, lambda one: store.get(key + one), split):
            yield _object(store, key + found)
        return
    if split is not None:
        raise _no_split(name, split)
    if not has_magic(key):
        yield _object(store, key)
        return
    fixed = key[: min(key.index(sign) for sign in "*?[" if sign in key)]
    matches = [stat.key for stat in store.list(fixed) if fnmatchcase(stat.key, key)]
    if not matches:
        raise InputError(
            f"No object matches {name}.",
            why="The listing of the bucket is the one that the endpoint gives.",
        )
    for match in matches:
        yield _object(store, match)


def _object(store: ObjectStore, key: str) -> Source:
    return Source(f"{store.url}/{key}", lambda: nullcontext(_open_object(store, key)))


def _open_object(store: ObjectStore, key: str) -> BinaryIO:
    found = store.stat(key)
    if found is None:
        raise InputError(
            f"{store.url}/{key} is not there.",
            why="A folder's name ends with a slash.",
            fix=f"{store.url}/{key}/",
        )
    return io.BufferedReader(Ranges(store, found), _RANGE_BYTES)
