"""The server that the queue is on, in a few figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from common.ids import RunName
from common.queue.scripts import explain

if TYPE_CHECKING:
    import redis.asyncio


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One look at a Redis or Valkey. Sizes in bytes."""

    memory_bytes: int
    memory_limit_bytes: int  # 0: there is none
    clients: int
    append_only_ok: bool  # the AOF is on, and its last write went well


async def server_facts(redis: redis.asyncio.Redis) -> ServerFacts:
    """Ask the server for its figures.

    Raises:
        QueueError: it refused or could not be reached.
    """
    try:
        info: dict[str, Any] = await redis.info()
    except (RedisError, OSError) as error:
        raise explain(error, RunName("*"), "reading") from error
    return ServerFacts(
        memory_bytes=int(info.get("used_memory", 0)),
        memory_limit_bytes=int(info.get("maxmemory", 0)),
        clients=int(info.get("connected_clients", 0)),
        append_only_ok=bool(info.get("aof_enabled")) and info.get("aof_last_write_status") == "ok",
    )
