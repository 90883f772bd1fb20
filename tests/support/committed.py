"""Runs whose completions are on object storage already, without a queue or a sink."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from common import codec
from common.family import pack_items
from common.ids import RunName
from common.objectstore import RunPaths
from common.parts import WRITER, codec_for
from common.parts.bits import Bits
from common.parts.chain import fix_format
from common.parts.index import describe
from tests.support.runs import store_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.objectstore import ObjectStore
    from common.records import Completion, RunManifest


def store_committed(
    store: ObjectStore,
    name: str,
    parts: Sequence[Sequence[Completion]],
    *,
    suffix: str = "parquet",
    dead: Sequence[dict[str, Any]] = (),
    unfinished: int = 0,
) -> RunManifest:
    """Put up a run of one sample a row, its parts, and its last objects.

    With ``unfinished`` items more than there are completions, it goes on and has no last objects.
    """
    done = sum(len(part) for part in parts)
    manifest = store_run(store, RunName(name), rows=done + len(dead) + unfinished)
    add_parts(store, name, parts, suffix=suffix)
    if not unfinished:
        paths = RunPaths(RunName(name))
        letters = b"".join(codec.dumps(one) + b"\n" for one in dead)
        counts = {"items": done + len(dead), "committed": done, "dead": len(dead)}
        store.put(paths.failed, letters)
        store.put(paths.success, codec.dumps(counts))
    return manifest


def store_child(
    store: ObjectStore,
    parent: RunManifest,
    name: str,
    items: Sequence[int],
    parts: Sequence[Sequence[Completion]],
    *,
    suffix: str = "parquet",
) -> RunManifest:
    """Put up a finished child run that redid ``items`` of its parent; its own are 0, 1, ..."""
    manifest = store_committed(store, name, parts, suffix=suffix)
    redone = Bits(parent.items)
    redone.add_all(items)
    child = replace(
        manifest,
        parent=parent.run,
        parent_fingerprint=parent.fingerprint,
        parent_reason="truncated",
        parent_items=pack_items(redone),
    )
    store.put(RunPaths(child.run).run_json, codec.dumps(child))
    store.put(RunPaths(parent.run).child(child.run), b"{}")
    return child


def add_parts(
    store: ObjectStore,
    name: str,
    parts: Sequence[Sequence[Completion]],
    *,
    suffix: str = "parquet",
    start: int = 0,
) -> None:
    """Write parts from number ``start`` on, each with its index, as a sink does."""
    paths = RunPaths(RunName(name))
    fix_format(store, paths, suffix)
    part_codec = codec_for(suffix)
    for number, batch in enumerate(parts, start=start):
        token = f"{name}{number}"
        data = part_codec.encode(batch, token)
        store.put(paths.part(number, suffix), data, metadata={WRITER: token})
        index = describe(number, suffix, data, batch, token)
        store.put(paths.index(number), codec.dumps(index))


def dead_letter(k: int, *, row_id: str | None = None, verdict: str = "empty") -> dict[str, Any]:
    """Return a line of failed.jsonl."""
    return {
        "k": k,
        "row": k,
        "sample": 0,
        "row_id": row_id,
        "verdict": verdict,
        "text": "the answer is empty",
        "worker": "gpu0@host",
        "at": "2026-01-01T00:00:00Z",
        "messages": [{"role": "user", "content": "x" * 100}],
        "metadata": {},
    }
