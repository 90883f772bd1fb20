"""The doctor's look at Redis: fit for the queue, durable, roomy, and open to this service.

Changes nothing: reads INFO, and has rights checked by commands that are never carried out.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from common.doctor.findings import Finding, Level, Part, failed, skipped
from common.errors import GenqError
from common.queue.rights import denied, trials
from common.redis_client import (
    FAILURES,
    append_fsync,
    explain,
    open_client,
    safe_url,
    server_problems,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis.asyncio

    from common.settings import Settings

CROWDED = 0.8  # share of maxmemory, or of maxclients, from which there is little left
CLOCK_SECONDS = 5.0  # nothing rests on our clock; logs and times of completions would mislead
MIB = 1 << 20
_USER = re.compile(r"User (\S+) has no permissions")
_SHOWN = 8


async def look_at_redis(settings: Settings, service: str) -> list[Finding]:
    """Return what is to be said of the Redis that the settings name."""
    try:
        client = open_client(settings, name="doctor")
    except GenqError as error:
        return [failed(Part.SETTINGS, "redis_url", error)]
    try:
        info: dict[str, Any] = await client.info()
    except FAILURES as error:
        await client.aclose()
        rest = "Redis does not let us in"
        return [
            failed(Part.REDIS, "reachable", explain(error, settings)),
            *(skipped(Part.REDIS, name, rest) for name in ("policy", "durability", "rights")),
        ]
    try:
        return [
            *_server(info, safe_url(settings.redis_url.get_secret_value())),
            await _durability(client, info),
            _memory(info),
            _connections(info),
            await _clock(client, settings),
            await _rights(client, service),
        ]
    except FAILURES as error:
        return [failed(Part.REDIS, "reachable", explain(error, settings))]
    finally:
        await client.aclose()


def _server(info: dict[str, Any], url: str) -> Iterator[Finding]:
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = info.get("valkey_version") or info.get("redis_version")
    yield Finding(Part.REDIS, "reachable", Level.OK, f"{name} {version} at {url}")
    problems = list(server_problems(info, url))
    for problem in problems:
        yield failed(Part.REDIS, "fit", problem)
    if not problems:
        yield Finding(
            Part.REDIS, "fit", Level.OK, "a primary by itself, maxmemory-policy noeviction"
        )


async def _durability(client: redis.asyncio.Redis, info: dict[str, Any]) -> Finding:
    name = "durability"
    if not info.get("aof_enabled"):
        return Finding(
            Part.REDIS,
            name,
            Level.WARN,
            "appendonly is off: a crash of Redis loses what it holds",
            "redis-cli CONFIG SET appendonly yes    (and in its file)",
        )
    if info.get("aof_last_write_status") != "ok":
        return Finding(
            Part.REDIS,
            name,
            Level.FAIL,
            "the append-only file cannot be written",
            "Free space on the server's disk; its log says more.",
        )
    fsync = await append_fsync(client)
    if fsync not in ("always", ""):
        return Finding(
            Part.REDIS,
            name,
            Level.WARN,
            f"appendfsync is {fsync}: a crash can lose a second of work, which is done again",
            "redis-cli CONFIG SET appendfsync always    (and in its file)",
        )
    said = "appendfsync always" if fsync else "appendfsync is hidden from this user"
    return Finding(Part.REDIS, name, Level.OK, f"appendonly is on, {said}")


def _memory(info: dict[str, Any]) -> Finding:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        machine = int(info.get("total_system_memory", 0))
        whole = f", of {machine / MIB:,.0f} MiB of its machine" if machine else ""
        return Finding(
            Part.REDIS,
            "memory",
            Level.WARN,
            f"{used / MIB:,.0f} MiB used{whole}; there is no limit: it may be killed when it grows",
            "redis-cli CONFIG SET maxmemory 4gb    (about 200 bytes an item, and 512 MiB a run)",
        )
    said = f"{used / MIB:,.0f} of {limit / MIB:,.0f} MiB used"
    if used >= CROWDED * limit:
        return Finding(
            Part.REDIS,
            "memory",
            Level.FAIL if used >= limit else Level.WARN,
            said + ("; it takes nothing more" if used >= limit else "; loads will have to wait"),
            "redis-cli CONFIG SET maxmemory ...    (or let the sink catch up)",
        )
    return Finding(Part.REDIS, "memory", Level.OK, said)


def _connections(info: dict[str, Any]) -> Finding:
    clients, limit = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    said = f"{clients:,} of {limit:,} in use" if limit else f"{clients:,} in use"
    if limit and clients > CROWDED * limit:
        fix = "redis-cli CONFIG SET maxclients 10000"
        return Finding(Part.REDIS, "connections", Level.WARN, said, fix)
    return Finding(Part.REDIS, "connections", Level.OK, said)


async def _clock(client: redis.asyncio.Redis, settings: Settings) -> Finding:
    asked = time.time()
    try:
        seconds, micros = await client.time()
    except FAILURES as error:
        return failed(Part.REDIS, "clock", explain(error, settings))
    offset = float(seconds) + float(micros) / 1e6 - (asked + time.time()) / 2
    return clock_finding(Part.REDIS, offset, warn_seconds=CLOCK_SECONDS)


def clock_finding(part: Part, offset: float, *, warn_seconds: float) -> Finding:
    """Return what is to be said of a server whose clock is ``offset`` seconds before ours."""
    if abs(offset) < warn_seconds:
        return Finding(part, "clock", Level.OK, f"within {max(abs(offset), 0.1):.1f} s of ours")
    side = "ahead of" if offset > 0 else "behind"
    return Finding(
        part,
        "clock",
        Level.WARN,
        f"its clock is {abs(offset):,.0f} s {side} ours",
        "timedatectl set-ntp true    (there and here)",
    )


async def _rights(client: redis.asyncio.Redis, service: str) -> Finding:
    wanted = list(trials(service))
    refusals = await denied(client, wanted)
    if not refusals:
        said = f"all {len({command[0] for command in wanted})} commands that gen-{service} uses"
        return Finding(Part.REDIS, "rights", Level.OK, said)
    names = sorted({command.lower() for command, _ in refusals})
    shown = " ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
    by_key = [text for _, text in refusals if "access" in text and "key" in text]
    user = next((found[1] for _, text in refusals if (found := _USER.search(text))), "USER")
    return Finding(
        Part.REDIS,
        "rights",
        Level.FAIL,
        f"the user may not: {shown}" + (" (not on the keys of a run)" if by_key else ""),
        (
            f"redis-cli ACL SETUSER {user} {' '.join('+' + name for name in names[:_SHOWN])}"
            if not by_key
            else "Give the user the keys that deploy/users.acl names for it."
        )
        + f"    (all of it: deploy/users.acl, user {service})",
    )
