"""Redis loses everything in the middle of a run: what `load --run NAME` takes to put it back."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis
import urllib3

from common.audit import check_counts
from common.ids import RunName
from common.objectstore import RunPaths
from common.parts.chain import fix_format
from common.prove import read_manifest
from common.queue.run_state import Runs
from common.s3 import open_store
from common.settings import load_settings
from consumer.sink.commit import PartWriter
from consumer.sink.recover import Ledger
from producer.console import Console
from producer.load.loader import LoadRequest, load
from tests.bench.bench_load import load as load_as_people_do
from tests.bench.bench_load import write_rows
from tests.support import servers
from tests.support.completions import completion
from tests.support.queues import async_client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from common.audit import RunCounts
    from common.settings import Settings
    from deploy.embedded import S3Server

RUN = RunName("lost")
PART_ROWS = 500


@dataclass
class Loss:
    seconds: float
    requests: int
    parts: int
    restored: int
    queued: int


def redis_is_lost(s3: S3Server, rows: int) -> Loss:
    """Load, commit half as a sink does, empty Redis, and load back from storage alone."""
    given = s3.settings(prefix=f"lost-{secrets.token_hex(4)}")
    with servers.redis_server() as server, servers.private_folder() as folder:
        settings = load_settings(redis_url=server.url, state_dir=folder / "state", **given)
        _load(folder, rows, given, server.url)
        parts = commit_half(settings, rows)
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
        with counted_requests() as requests:
            began = time.monotonic()
            done = load(LoadRequest(run=RUN), settings, Console(quiet=True))
            seconds = time.monotonic() - began
        counts = asyncio.run(_counts(server.url, settings))
    assert check_counts(counts) == []
    assert (counts.committed, counts.queued) == (rows // 2, rows - rows // 2), counts
    assert (done.committed, done.new) == (counts.committed, counts.queued), done
    return Loss(seconds, requests[0], parts, counts.committed, counts.queued)


def _load(folder: Path, rows: int, given: dict[str, str], url: str) -> None:
    path = folder / "rows.jsonl"
    write_rows(path, rows)
    ours = {f"GENQ_{name.upper()}": text for name, text in given.items()}
    load_as_people_do(path, RUN, {**os.environ, **ours, "GENQ_REDIS_URL": url})


def commit_half(settings: Settings, rows: int) -> int:
    """Write parts as a sink does, every second item of the run; return how many."""
    store, paths = open_store(settings), RunPaths(RUN)
    manifest = read_manifest(store, RUN)
    ledger = Ledger(store, paths, manifest, fix_format(store, paths, "parquet"))
    writer = PartWriter(store, paths, ledger)
    items = range(1, rows, 2)
    for at in range(0, len(items), PART_ROWS):
        writer.write([completion(k) for k in items[at : at + PART_ROWS]])
    return ledger.next


@contextmanager
def counted_requests() -> Iterator[list[int]]:
    """Count the requests that this process sends by urllib3, as the S3 client does."""
    sent, real = [0], urllib3.PoolManager.urlopen

    def counting(*args: object, **options: object) -> object:
        sent[0] += 1
        return real(*args, **options)

    urllib3.PoolManager.urlopen = counting
    try:
        yield sent
    finally:
        urllib3.PoolManager.urlopen = real


async def _counts(url: str, settings: Settings) -> RunCounts:
    async with async_client(url) as client:
        return await Runs(client, settings.limits()).sample(RUN)
