"""Workers as RQ registers them, with the figures that our consumers add."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from common.ids import WorkerName
from common.keys import RQ_WORKER_PREFIX, RQ_WORKERS, gauges_key, worker_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis.asyncio

OURS_FIELD = "genq"  # in RQ's record of a worker


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker: what RQ's record says, and its figures (none of a stock worker's)."""

    name: WorkerName
    state: str  # RQ's: idle, busy, suspended, started
    queues: tuple[str, ...]
    hostname: str
    pid: int
    finished: int
    failed: int
    birth: str  # as RQ writes times: UTC
    last_heartbeat: str
    gauges: dict[str, str] = field(default_factory=dict)
    ours: bool = False  # a consumer of ours, no stock worker

    @property
    def silent(self) -> bool:
        """Whether a consumer of ours shows no figures any more: it was killed, or is cut off."""
        return self.ours and not self.gauges


async def all_workers(redis: redis.asyncio.Redis) -> list[WorkerInfo]:
    """Return the registered workers, by name; those whose record has expired are left out."""
    client: Any = redis  # its types allow for answers in text; ours are bytes
    members = await client.smembers(RQ_WORKERS)
    names = sorted(WorkerName(key.decode().removeprefix(RQ_WORKER_PREFIX)) for key in members)
    async with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hgetall(worker_key(name))
            pipe.hgetall(gauges_key(name))
        answers = await pipe.execute() if names else []
    return [
        _worker_info(name, _texts(record), _texts(gauges))
        for name, record, gauges in zip(names, answers[::2], answers[1::2], strict=True)
        if record
    ]


async def set_gauges(
    redis: redis.asyncio.Redis,
    worker: WorkerName,
    mapping: Mapping[str, str | int | float],
    ttl: int,
) -> None:
    """Publish a worker's figures for ``ttl`` seconds."""
    key = gauges_key(worker)
    fields: dict[Any, Any] = dict(mapping)
    async with redis.pipeline(transaction=True) as pipe:
        pipe.hset(key, mapping=fields)
        pipe.expire(key, ttl)
        await pipe.execute()


def _texts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}


def _worker_info(name: WorkerName, record: Mapping[str, str], gauges: dict[str, str]) -> WorkerInfo:
    return WorkerInfo(
        name=name,
        state=record.get("state", ""),
        queues=tuple(filter(None, record.get("queues", "").split(","))),
        hostname=record.get("hostname", ""),
        pid=int(record.get("pid") or 0),
        finished=int(record.get("successful_job_count") or 0),
        failed=int(record.get("failed_job_count") or 0),
        birth=record.get("birth", ""),
        last_heartbeat=record.get("last_heartbeat", ""),
        gauges=gauges,
        ours=OURS_FIELD in record,
    )
