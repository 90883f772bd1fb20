"""What a part holds, without opening it: one small JSON object beside each part.

An index is a cache. It counts only if its token is the part's; else the part itself is read.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import codec
from common.build import NewerVersionError, build, newer
from common.errors import VerifyError
from common.objectstore import ObjectMissingError
from common.parts import WRITER, codec_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common.objectstore import ObjectStat, ObjectStore, RunPaths
    from common.parts import PartCodec
    from common.records import Completion

INDEX_VERSION = 1


@dataclass(frozen=True, slots=True)
class PartIndex:
    """One part: its writer, its size and what is in it."""

    part: int
    suffix: str
    token: str
    rows: int
    bytes: int
    sha256: str
    md5: str  # the ETag, where a store makes it from the body alone
    items: list[int]
    verdicts: dict[str, int]
    engines: list[str]
    models: list[str]
    prompt_tokens: int
    completion_tokens: int
    version: int = INDEX_VERSION


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A part in storage, and whether its index object told of it."""

    index: PartIndex
    stat: ObjectStat
    indexed: bool


def describe(
    number: int, suffix: str, data: bytes, completions: Iterable[Completion], token: str
) -> PartIndex:
    """Return the index of a part from its bytes and what it holds."""
    items: list[int] = []
    verdicts: Counter[str] = Counter()
    engines, models = set(), set()
    prompt_tokens = completion_tokens = 0
    for one in completions:
        items.append(one.k)
        verdicts[one.verdict] += 1
        engines.add(one.engine)
        models.add(one.model)
        prompt_tokens += one.usage.prompt_tokens
        completion_tokens += one.usage.completion_tokens
    return PartIndex(
        part=number,
        suffix=suffix,
        token=token,
        rows=len(items),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        md5=hashlib.md5(data, usedforsecurity=False).hexdigest(),
        items=items,
        verdicts=dict(verdicts),
        engines=sorted(engines),
        models=sorted(models),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )


def describe_part(number: int, part_codec: PartCodec, data: bytes) -> PartIndex:
    """Return the index of a part from its bytes alone; raises ValueError if it is damaged."""
    token = part_codec.token_of(data)
    return describe(number, part_codec.suffix, data, part_codec.decode(data), token)


def read_index(store: ObjectStore, paths: RunPaths, number: int) -> PartIndex | None:
    """Return the index object of a part as it is, or None if there is none that can be read.

    Raises:
        StoreError: the store could not be asked.
    """
    try:
        return build(PartIndex, codec.loads(store.get(paths.index(number))))
    except (ObjectMissingError, ValueError):
        return None


def find_part(store: ObjectStore, paths: RunPaths, number: int, suffix: str) -> FoundPart | None:
    """Return what part ``number`` holds, or None if there is no such part.

    Raises:
        StoreError: the store could not be asked, or a newer sink wrote the part.
        VerifyError: the part is damaged; it is named.
    """
    key = paths.part(number, suffix)
    stat = store.stat(key)
    if stat is None:
        return None
    index = read_index(store, paths, number)
    token = stat.metadata.get(WRITER)
    if index is not None and token == index.token and stat.size == index.bytes:
        return FoundPart(index, stat, indexed=True)
    try:
        return FoundPart(
            describe_part(number, codec_for(suffix), store.get(key)), stat, indexed=False
        )
    except NewerVersionError as error:
        raise newer(f"{store.url}/{key}", error) from error
    except ValueError as error:
        raise VerifyError(
            f"{store.url}/{key} is damaged.",
            why=str(error),
            fix=f"gen-producer verify {paths.run} lists what is affected; nothing was changed.",
        ) from error
