"""Runs for tests that need no producer: run.json and prompt shards, written as it writes them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from common import codec
from common.objectstore import RunPaths
from common.prove import input_fingerprint
from common.records import Row, RunManifest, RunSettings, ShardInfo

if TYPE_CHECKING:
    from common.ids import RunName
    from common.objectstore import ObjectStore

SHARD_ROWS = 1000


def run_rows(rows: int) -> list[Row]:
    return [
        Row(i=i, messages=[{"role": "user", "content": f"Say {i}."}], id=f"row {i}")
        for i in range(rows)
    ]


def _shards(rows: int) -> list[bytes]:
    all_rows = run_rows(rows)
    return [
        b"".join(codec.dumps(row) + b"\n" for row in all_rows[at : at + SHARD_ROWS])
        for at in range(0, rows, SHARD_ROWS)
    ]


def run_manifest(run: RunName, *, rows: int, samples: int = 1) -> RunManifest:
    shards = [
        ShardInfo(
            name=f"{number:06}.jsonl.zst",
            first_row=number * SHARD_ROWS,
            rows=lines.count(b"\n"),
            sha256=hashlib.sha256(lines).hexdigest(),
        )
        for number, lines in enumerate(_shards(rows))
    ]
    return RunManifest(
        run=run,
        settings=RunSettings(model="tiny", model_fingerprint="", samples=samples),
        fingerprint=input_fingerprint(shard.sha256 for shard in shards),
        rows=rows,
        shard_rows=SHARD_ROWS,
        shards=shards,
        created="2026-01-01T00:00:00Z",
        source="test",
        genq_version="0",
    )


def store_run(store: ObjectStore, run: RunName, *, rows: int, samples: int = 1) -> RunManifest:
    manifest = run_manifest(run, rows=rows, samples=samples)
    paths = RunPaths(run)
    for number, lines in enumerate(_shards(rows)):
        store.put(paths.prompts(manifest.fingerprint, number), codec.compress(lines))
    store.put(paths.run_json, codec.dumps(manifest))
    return manifest
