"""What the status of a run adds from object storage: its children, and examples of what is wrong.

Reads alone, and little. Where the store does not answer, there is less to see, and no error.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from common.build import build
from common.codec import decompress, loads
from common.errors import GenqError, StoreAwayError
from common.family import children_of
from common.ids import Item, RunName, row_of
from common.objectstore import ObjectMissingError, RunPaths
from common.parts import codec_for
from common.parts.chain import chain_end, read_format, walk
from common.ranges import Ranges
from common.records import Row, Verdict
from common.s3 import open_store
from common.unfinished import is_cancelled
from producer.manifest import find_manifest

if TYPE_CHECKING:
    from collections.abc import Collection

    from common.objectstore import ObjectStore
    from common.queue.run_state import Runs
    from common.records import RunInfo, RunManifest
    from common.settings import Settings

EXAMPLES = 2
KEPT_SECONDS = 30.0  # what was read of a run's children, or that storage is away, holds so long
_TEXT = 60  # characters of a prompt or an answer
_PARTS = 3  # the first rows lie in the first parts
_SHARD_LIMIT_BYTES = 16 * 2**30
_RESULT_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Example:
    """One of the first rows that went wrong."""

    item: int
    row: int  # 1 is the first
    row_id: str | None
    verdict: str
    prompt: str  # how the last message begins
    answer: str  # how the answer begins, or why there is none


@dataclass(frozen=True, slots=True)
class Child:
    """A child run, and how far it is."""

    run: str
    reason: str
    items: int
    state: str  # of the run in Redis, or not_in_redis
    committed: int
    ok: int | None = None  # of those; None where nobody can say


class _Asking:
    """Passes over what could not be asked, and remembers for a while that the store is away."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def away(self) -> bool:
        """Whether the store did not answer a moment ago."""
        return time.monotonic() < self._until

    def __enter__(self) -> None:
        """Begin to ask."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Pass over an error of ours; nothing else."""
        if isinstance(error, StoreAwayError) and not self.away:
            self._until = time.monotonic() + KEPT_SECONDS
        return isinstance(error, GenqError)


class StoreLook:
    """Looks of one status command, remembered as long as they cannot change."""

    def __init__(self, runs: Runs, settings: Settings) -> None:
        self._runs = runs
        self._settings = settings
        self._manifests: dict[str, RunManifest | None] = {}
        self._examples: dict[str, list[Example]] = {}
        self._children: dict[str, tuple[float, list[RunManifest]]] = {}
        self._parts: dict[str, tuple[str, int]] = {}  # the parts' format, and how many there are
        self._opened: ObjectStore | None = None
        self._asking = _Asking()

    async def success(self, info: RunInfo) -> bool | None:
        """Return whether a closed run has its ``_SUCCESS``; None where nobody can say."""
        with self._asking:
            if not self._is_here(info):
                return None
            stat = await asyncio.to_thread(self._open().stat, RunPaths(info.run).success)
            return stat is not None
        return None

    async def children(self, info: RunInfo) -> list[Child]:
        """Return the children of a run, the oldest first."""
        with self._asking:
            return [await self._child(child) for child in await self._children_of(info)]
        return []

    async def _children_of(self, info: RunInfo) -> list[RunManifest]:
        known = self._children.get(info.epoch)
        if known is not None and time.monotonic() - known[0] < KEPT_SECONDS:
            return known[1]
        manifest = await self._manifest(info)
        if manifest is None:
            return []
        found = await asyncio.to_thread(children_of, self._open(), manifest)
        self._children[info.epoch] = (time.monotonic(), found)
        return found

    async def reproducible(self, info: RunInfo) -> bool:
        """Return whether a run asks for equal tokens; False where nobody can say."""
        with self._asking:
            manifest = await self._manifest(info)
            return manifest is not None and manifest.settings.reproducible
        return False

    async def last_part(self, info: RunInfo) -> int | None:
        """Return the number of the newest part, or None where there is none or nobody can say."""
        with self._asking:
            if not self._is_here(info):
                return None
            store, paths = self._open(), RunPaths(info.run)
            suffix, known = self._parts.get(info.epoch, ("", 0))
            if not suffix:
                found = await asyncio.to_thread(read_format, store, paths)
                suffix = found or ""
            if suffix:
                end = await asyncio.to_thread(chain_end, store, paths, suffix, start=known)
                self._parts[info.epoch] = suffix, end
                return end - 1 if end else None
        return None

    def _is_here(self, info: RunInfo) -> bool:
        """Tell whether a store is named that may be the run's: another has other runs' objects."""
        return bool(self._settings.store) and info.store in ("", self._store().url)

    def _open(self) -> ObjectStore:
        """Return the store.

        Raises:
            StoreAwayError: it did not answer a moment ago; each call waits half a minute for it.
        """
        if self._asking.away:
            raise StoreAwayError("Object storage did not answer a moment ago.")
        return self._store()

    def _store(self) -> ObjectStore:
        if self._opened is None:
            self._opened = open_store(self._settings)
        return self._opened

    async def examples(self, info: RunInfo, verdict: str) -> list[Example]:
        """Return two of the watched rows that came to a class."""
        key = f"{info.epoch} {verdict}"
        if len(self._examples.get(key, ())) < EXAMPLES:
            self._examples[key] = []
            with self._asking:
                self._examples[key] = await self._find(info, verdict)
        return self._examples[key]

    async def verdicts(self, info: RunInfo) -> dict[str, int]:
        """Return what a finished run holds, by verdict: Redis counts only what it saw itself."""
        with self._asking:
            if self._is_here(info):
                return await asyncio.to_thread(finished_verdicts, self._open(), info.run)
        return {}

    async def _find(self, info: RunInfo, verdict: str) -> list[Example]:
        watched = await self._runs.watched(info.run)
        items = sorted(item for item, name in watched.items() if name == verdict)[:EXAMPLES]
        told = await self._runs.reasons(info.run, dict.fromkeys(items, verdict))
        answers = {one.item: one.text for one in told if one.text}
        if silent := [item for item in items if item not in answers]:
            answers |= _begun(await self._runs.results(info.run, silent))
        manifest = await self._manifest(info)
        rows: dict[Item, Row] = {}
        if manifest is not None:
            store = self._open()
            if silent := [item for item in items if item not in answers]:
                answers |= await asyncio.to_thread(_stored, store, manifest, silent)
            rows = await asyncio.to_thread(_rows, store, manifest, items)
        samples = manifest.settings.samples if manifest else 1
        return [
            Example(
                item=item,
                row=row_of(item, samples)[0] + 1,
                row_id=rows[item].id if item in rows else None,
                verdict=verdict,
                prompt=_last_message(rows[item]) if item in rows else "",
                answer=one_line(answers.get(item, "")),
            )
            for item in items
        ]

    async def _child(self, child: RunManifest) -> Child:
        known = await self._runs.get(child.run)
        if known is None:
            ended = await asyncio.to_thread(is_cancelled, self._open(), child.run)
            state = "cancelled" if ended else "not_in_redis"
            return Child(child.run, child.parent_reason, child.items, state, 0)
        counts = await self._runs.sample(child.run)
        verdicts = counts.kept
        if verdicts is None:  # Redis lost the run, or storage a part of it
            verdicts = await self.verdicts(known) if known.state == "closed" else {}
        ok = min(verdicts.get(Verdict.OK, 0), counts.committed) if verdicts else None
        return Child(child.run, child.parent_reason, child.items, known.state, counts.committed, ok)

    async def _manifest(self, info: RunInfo) -> RunManifest | None:
        if not self._is_here(info):
            return None
        if info.epoch not in self._manifests:
            store = self._open()
            self._manifests[info.epoch] = await asyncio.to_thread(find_manifest, store, info.run)
        return self._manifests[info.epoch]


def finished_verdicts(store: ObjectStore, run: RunName) -> dict[str, int]:
    """Return how many completions of each verdict a finished run has, as its manifest.json says.

    Raises:
        StoreError: the store could not be asked.
    """
    try:
        counts = loads(store.get(RunPaths(run).manifest))["counts"]
        return {str(name): int(count) for name, count in counts["verdicts"].items()}
    except (ObjectMissingError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def one_line(text: str) -> str:
    """Return how a text begins, in signs that no terminal takes for orders."""
    clean = "".join(sign if sign.isprintable() else " " for sign in text[: 4 * _TEXT])
    clean = " ".join(clean.split()).encode("ascii", "replace").decode()
    return clean if len(clean) <= _TEXT else clean[: _TEXT - 3] + "..."


def _begun(results: dict[Item, bytes]) -> dict[Item, str]:
    found = {}
    for item, payload in results.items():
        with suppress(ValueError, KeyError):
            found[item] = _answer(loads(decompress(payload, limit_bytes=_RESULT_LIMIT_BYTES)))
    return found


def _stored(store: ObjectStore, manifest: RunManifest, items: Collection[Item]) -> dict[Item, str]:
    """Return the answers of items that lie in the first parts."""
    found: dict[Item, str] = {}
    suffix = read_format(store, RunPaths(manifest.run))
    if suffix is None:
        return found
    for _, part in zip(range(_PARTS), walk(store, RunPaths(manifest.run), suffix), strict=False):
        if found.keys() >= set(items):
            break
        if set(items).isdisjoint(part.index.items):
            continue
        source = cast("BinaryIO", Ranges(store, part.stat))
        names = ("k", "content", "reasoning_content")
        with suppress(ValueError):
            for record in codec_for(suffix).open(source).rows(names):
                if record["k"] in items:
                    found[Item(record["k"])] = _answer(record)
    return found


def _answer(record: dict[str, Any]) -> str:
    return str(record["content"] or record.get("reasoning_content") or "")


def _rows(store: ObjectStore, manifest: RunManifest, items: Collection[Item]) -> dict[Item, Row]:
    found = {}
    for item in items:
        shard, place = divmod(row_of(item, manifest.settings.samples)[0], manifest.shard_rows)
        key = RunPaths(manifest.run).prompts(manifest.fingerprint, shard)
        with suppress(ValueError, IndexError):
            lines = decompress(store.get(key), limit_bytes=_SHARD_LIMIT_BYTES).split(b"\n")
            found[item] = build(Row, loads(lines[place]))
    return found


def _last_message(row: Row) -> str:
    content = row.messages[-1].get("content") if row.messages else ""
    return one_line(content if isinstance(content, str) else str(content))
