"""What a stock ``rq worker`` does with our jobs, by way of ``common.queue.run``.

Our consumers never call it: they lease items through :mod:`common.queue.prompts`. A stock worker
that was pointed at a run cannot generate anything. It must not lose what it took, either, so the
item gets a short lease of ours, under the worker's name. When that expires, the reaper puts the
item back and undoes what RQ noted about it; no delivery is charged.
"""

from __future__ import annotations

import logging

from rq import get_current_job

from common.ids import Token, WorkerName, new_nonce, run_name
from common.queue.scripts import call_sync

STOCK_LEASE_MS = 15_000  # RQ writes "finished" within that time of our return
STOCK_PREFIX = "rq-"  # by this the reaper knows such a lease

_log = logging.getLogger("rq.worker")  # where a stock worker's own lines go


def run() -> None:
    """Give back the job that the calling RQ worker is running.

    Raises:
        RuntimeError: not called by an RQ worker.
        QueueError: Redis refused; RQ records the failure, and the reaper takes the item back.
    """
    job = get_current_job()
    if job is None:
        raise RuntimeError("This is called by RQ's workers; items are leased by gen-consumer.")
    worker = WorkerName(f"{STOCK_PREFIX}{job.worker_name}")
    answer = call_sync(
        job.connection,
        run_name(job.origin),
        "adopt",
        worker,
        Token(f"{new_nonce()}00"),
        STOCK_LEASE_MS,
        job.id,
    )
    _log.warning(
        "%s belongs to a genq run, which a stock RQ worker cannot serve (%s). It goes back to the"
        " queue by itself. Stop this worker and start gen-consumer.",
        job.id,
        answer.decode(),
    )
