"""Prompt shards on their way to object storage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from common.failpoint import declare, hit
from common.objectstore import RunPaths

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.ids import RunName
    from common.objectstore import ObjectStore
    from producer.load.spool import Spool

declare("load.after_shard")
_THREADS = 8


def upload_shards(
    store: ObjectStore, run: RunName, spool: Spool, *, progress: Callable[[int], None]
) -> int:
    """Put up the shards that are not there yet; return how many were.

    Their keys hold the fingerprint of all rows, so a key only ever means one content, and two
    data sets never mix. One that is there in another size (packed by another zstd) is rewritten.

    Raises:
        StoreError: the store cannot be written; what is there stays, and the next try goes on.
    """
    fingerprint = spool.fingerprint
    paths = RunPaths(run)
    prefix = paths.prompts(fingerprint, 0).rpartition("/")[0] + "/"
    there = {stat.key: stat.size for stat in store.list(prefix)}

    def put(number: int) -> None:
        store.put(
            paths.prompts(fingerprint, number),
            spool.packed(number).read_bytes(),
            content_type="application/zstd",
        )
        hit("load.after_shard")

    missing = [
        number
        for number in range(len(spool.shards))
        if there.get(paths.prompts(fingerprint, number)) != spool.packed(number).stat().st_size
    ]
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="upload")
    try:
        for done, _ in enumerate(pool.map(put, missing), start=1):
            progress(len(spool.shards) - len(missing) + done)
    finally:
        pool.shutdown(cancel_futures=True)
    return len(missing)
