"""Connections to Redis or Valkey, checked before work starts.

Retries are off: a script whose answer was lost is repeated by its caller, who knows that it is
the same call (redis-py 8 would repeat it up to ten times by itself).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
import structlog
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    LockError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)
from redis.retry import Retry

from common.errors import QueueAwayError, QueueError, UsageError
from common.keys import PROBE_KEYS
from common.redis_trouble import trouble
from common.settings import names_of, origin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from common.settings import Settings

log = structlog.get_logger()
MIN_VERSION = (7, 0)
FAILURES = (RedisError, OSError)  # all that a call may raise
LOCK_LOST = LockError  # what a lock's renewal raises where somebody else has it, or nobody
CONNECT_SECONDS = 5.0
# Longer than any script of ours may run, and than any BLOCK of ours.
ANSWER_SECONDS = 10.0
_NO_CONNECTION = "connecting to"  # in the client library's words, where none was made
_HARMLESS = "#!lua flags=no-writes\nreturn 1"
_SCHEMES = ("redis", "rediss", "unix")
_HIDDEN = "(the URL is not shown)"


def safe_url(url: str) -> str:
    """Return what may be shown of a Redis URL: no user, no password, no options.

    One that cannot be told apart for certain is hidden, as where a password holds a bare ``/``.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        odd = not (host and parts.port != 0) if parts.scheme != "unix" else not parts.path
    except ValueError:
        return _HIDDEN
    beyond = f"{parts.path}{parts.query}{parts.fragment}"
    if odd or parts.scheme not in _SCHEMES or "@" in beyond:
        return _HIDDEN
    return f"{parts.scheme}://{host}{parts.path}"


def _options(name: str) -> dict[str, Any]:
    return {
        "client_name": f"genq-{name}",
        "decode_responses": False,
        "health_check_interval": 0,
        "protocol": 2,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_keepalive": True,
        "socket_timeout": ANSWER_SECONDS,
    }


def open_client(settings: Settings, *, name: str) -> redis.asyncio.Redis:
    """Return a client that has not connected yet, retries off.

    Raises:
        UsageError: the URL cannot be read.
    """
    url = settings.redis_url.get_secret_value()
    try:
        pool = redis.asyncio.ConnectionPool.from_url(
            url, max_connections=32, retry=AsyncRetry(NoBackoff(), 0), **_options(name)
        )
    except ValueError:
        raise UsageError(
            f"{safe_url(url)} is not a Redis URL.",
            # Not the library's words: they quote what they stumble over, which may be the password.
            why=f"It comes from {origin_of('redis_url', {})}.",
            fix="For example: export GENQ_REDIS_URL=redis://USER:PASSWORD@127.0.0.1:6379/0"
            " (write / and # of a password as %2F and %23)",
        ) from None
    return redis.asyncio.Redis.from_pool(pool)


def log_weakness(line: str) -> None:
    """Tell a service's log what :func:`connect` found: for its ``warn``."""
    log.warning("Redis may lose what it took", why=line)


async def connect(
    settings: Settings,
    *,
    name: str,
    writes: bool = False,
    warn: Callable[[str], None] | None = None,
) -> redis.asyncio.Redis:
    """Return a client to a server that was found fit for the queue.

    ``writes``: the caller changes runs, so its user must be allowed to. ``warn`` is called with
    each weakness of the server, once, where it can be used.

    Raises:
        QueueError: unreachable, refused, too old, in cluster mode, or set to evict keys.
    """
    client = open_client(settings, name=name)
    try:
        weaknesses = await check_server(client, settings)
        if writes:
            await check_rights(client, settings)
        if warn is not None:
            for line in weaknesses:
                warn(line)
    except BaseException:
        await client.aclose()
        raise
    return client


def connect_sync(settings: Settings, *, name: str = "rq") -> redis.Redis:
    """Return a blocking client for RQ's own classes, retries off."""
    return redis.Redis.from_url(
        settings.redis_url.get_secret_value(), retry=Retry(NoBackoff(), 0), **_options(name)
    )


async def check_server(client: redis.asyncio.Redis, settings: Settings) -> list[str]:
    """Check the server; return warnings, each with the setting it names.

    Raises:
        QueueError: the server cannot be used as it is.
    """
    url = safe_url(settings.redis_url.get_secret_value())
    try:
        info = await client.info()
        for problem in server_problems(info, url):
            raise problem
        return await _durability_warnings(client, info)
    except (RedisError, OSError) as error:
        raise explain(error, settings) from error


def server_problems(info: dict[str, Any], url: str) -> Iterator[QueueError]:
    """Yield what makes a server unfit, by its INFO; nothing where it can be used."""
    version = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2])
    if version < MIN_VERSION:
        yield QueueError(
            f"Redis at {url} is too old.",
            why=f"It is {info.get('redis_version')}; the queue needs 7.0 (or Valkey).",
            fix="Start a newer server, for example Valkey 9 or Redis 7.4.",
        )
    if info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == 1:
        yield QueueError(
            f"Redis at {url} runs in cluster mode.",
            why="A run's keys must be on one server.",
            fix="Use a single server, with replicas and Sentinel if wanted.",
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield QueueError(
            f"Redis at {url} would throw prompts away.",
            why=f"maxmemory-policy is {policy}: under memory pressure it deletes keys.",
            fix="redis-cli CONFIG SET maxmemory-policy noeviction",
        )
    if info.get("role") != "master":
        yield QueueError(
            f"Redis at {url} is a replica.", why="It takes no writes.", fix="Name the primary."
        )


async def check_rights(client: redis.asyncio.Redis, settings: Settings) -> None:
    """Check that scripts may be run on the keys of RQ and of ours. Changes nothing.

    A user who lacks a single command shows it only when that is called: nobody can ask beforehand.

    Raises:
        QueueError: the user has not the right.
    """
    asked: Any = client  # execute_command has no types
    try:
        await asked.execute_command("EVAL", _HARMLESS, len(PROBE_KEYS), *PROBE_KEYS)
    except (RedisError, OSError) as error:
        raise explain(error, settings) from error


async def memory(client: redis.asyncio.Redis) -> tuple[int, int]:
    """Return how many bytes the server uses and how many it may; 0: as many as there are.

    Unknown, as where an ACL hides it, is 0, too.
    """
    try:
        info = await client.info("memory")
    except (RedisError, OSError):
        return 0, 0
    return int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))


async def _durability_warnings(client: redis.asyncio.Redis, info: dict[str, Any]) -> list[str]:
    if not info.get("aof_enabled"):
        return [
            "Redis' appendonly is no: a crash of it loses what it holds (CONFIG SET appendonly yes)"
        ]
    fsync = await append_fsync(client)
    if fsync not in ("always", ""):
        line = f"Redis' appendfsync is {fsync}: a crash of it can lose a second of work"
        return [f"{line} (CONFIG SET appendfsync always)"]
    return []


async def append_fsync(client: redis.asyncio.Redis) -> str:
    """Return when the server's log is brought to disk; "" where an ACL hides CONFIG."""
    try:
        return str((await client.config_get("appendfsync")).get("appendfsync", ""))
    except (NoPermissionError, ResponseError):
        return ""


def _way_there(url: str, words: str) -> str:
    """Return how to reach a server: one end's TLS without the other's looks like silence to both.

    A server that wants TLS takes a plain connection, and ends it. Where none was made, as at a dead
    port, TLS is not what is missing.
    """
    start = f"Start it (redis-server, valkey-server), or set {names_of('redis_url')[0]}."
    if url.startswith("rediss:"):
        return f"{start} If it has no TLS: redis:// instead of rediss://."
    if url.startswith("redis:") and _NO_CONNECTION not in words:
        return f"If it wants TLS: rediss:// instead of redis://. Else: {start}"
    return start


def explain(error: BaseException, settings: Settings) -> QueueError:
    """Return the QueueError that tells what a Redis failure means and what to do."""
    url = safe_url(settings.redis_url.get_secret_value())
    origin = origin_of("redis_url", {})
    why = f"The address comes from {origin}: {error}"
    if known := trouble(str(error)):
        return known.kind(f"Redis at {url} {known.does}.", why=why, fix=known.fix)
    if isinstance(error, (RedisConnectionError, RedisTimeoutError, OSError)):
        return QueueAwayError(
            f"Redis at {url} cannot be reached.",
            why=why,
            fix=_way_there(url, str(error)),
        )
    return QueueError(f"Redis at {url} refused.", why=why)
