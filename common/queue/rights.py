"""Which commands a Redis user may not use, asked without carrying one of them out.

Between MULTI and DISCARD a server checks each command's rights, on command, keys and channels, and
only queues it; DISCARD throws all away. (ACL DRYRUN would say the same, to administrators only.)
What is denied shows in the server's ACL LOG, as any denied command does.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from common.ids import WorkerName, run_name
from common.keys import RQ_PUBSUB_PREFIX, RQ_WORKERS, RunKeys, gauges_key, worker_key
from common.queue.scripts import script, script_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import redis.asyncio

PROBE_RUN = run_name("genq-doctor")  # there never is such a run in what is asked: only its keys
PROBE_WORKER = WorkerName("genq-doctor")
_CALLS = re.compile(r"\bcall\('([A-Z]+)'")
_MULTI = "MULTI"

# Command -> arguments that a server takes, behind the key. None of them is ever carried out.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("BITCOUNT", "DEL", "EXISTS", "GET", "HGETALL", "HKEYS", "HLEN", "HRANDFIELD"),
            *(
                "HVALS",
                "INCR",
                "RPOP",
                "TYPE",
                "LLEN",
                "LPOP",
                "PERSIST",
                "PTTL",
                "SCARD",
                "SMEMBERS",
                "UNLINK",
                "XLEN",
                "ZCARD",
            ),
        ),
        (),
    ),
    **dict.fromkeys(("HDEL", "HEXISTS", "HGET", "HMGET", "HSTRLEN", "LPOS", "LPUSH"), ("a",)),
    **dict.fromkeys(
        ("RPUSH", "SADD", "SISMEMBER", "SREM", "SET", "ZMSCORE", "ZRANK", "ZREM", "ZSCORE"), ("a",)
    ),
    **dict.fromkeys(("HSET", "HSETNX"), ("a", "b")),
    **dict.fromkeys(("LRANGE", "ZRANGE", "ZRANGEBYSCORE", "ZREMRANGEBYRANK"), ("0", "0")),
    **dict.fromkeys(("ZCOUNT", "ZREVRANGE", "ZREVRANGEBYSCORE", "ZREMRANGEBYSCORE"), ("0", "0")),
    "EXPIRE": ("1",),
    "INCRBY": ("1",),
    "LINDEX": ("0",),
    "LSET": ("0", "a"),
    "LTRIM": ("0", "0"),
    "PEXPIRE": ("1",),
    "XPENDING": ("g",),
    "XREVRANGE": ("+", "-"),
    "ZINCRBY": ("1", "a"),
    "GETBIT": ("0",),
    "HINCRBY": ("a", "1"),
    "HSCAN": ("0",),
    "LREM": ("1", "a"),
    "SETBIT": ("0", "1"),
    "XACK": ("g", "0-1"),
    "XADD": ("*", "a", "b"),
    "XAUTOCLAIM": ("g", "c", "1000", "0-0"),
    "XDEL": ("0-1",),
    "XRANGE": ("-", "+"),
    "ZADD": ("1", "a"),
}
# What consumers' and sinks' own code asks for, beside the scripts.
_STREAM = ("XREADGROUP", "XAUTOCLAIM", "XACK")


def commands_of_scripts() -> list[str]:
    """Return the commands that the scripts of lua/ call, in their own text."""
    found = {command for name in script_names() for command in _CALLS.findall(script(name).text)}
    return sorted(found)


def trials(service: str) -> Iterator[tuple[str, ...]]:
    """Yield the commands that a service needs, each with arguments, on keys that nobody has."""
    keys = RunKeys(PROBE_RUN)
    given = keys.script_keys()
    for call in ("EVAL", "EVALSHA"):
        yield (call, "return 1" if call == "EVAL" else "0" * 40, str(len(given)), *given)
        yield (
            f"{call}_RO",
            "return 1" if call == "EVAL" else "0" * 40,
            "2",
            keys.meta,
            keys.queue,
        )
    for command in commands_of_scripts():
        with suppress(KeyError):  # a test holds the table against the scripts
            yield trial(command, keys.scratch)
    for command in ("HSCAN", "ZMSCORE", *(_STREAM if service == "sink" else ())):
        yield trial(command, keys.stream)
    if service == "consumer":
        worker = worker_key(PROBE_WORKER)
        yield ("HSET", worker, "a", "b")
        yield ("EXPIRE", worker, "1")
        yield ("DEL", worker)
        yield ("SADD", RQ_WORKERS, "a")
        yield ("SADD", f"{RQ_WORKERS}:{PROBE_RUN}", "a")
        yield ("HSET", gauges_key(PROBE_WORKER), "a", "b")
        yield ("SUBSCRIBE", f"{RQ_PUBSUB_PREFIX}{PROBE_WORKER}")


def trial(command: str, key: str) -> tuple[str, ...]:
    """Return a command with arguments that a server takes.

    Raises:
        KeyError: nobody has said what arguments it takes.
    """
    special = {
        "TIME": ("TIME",),
        "BITOP": ("BITOP", "AND", key, key),
        "COPY": ("COPY", key, key),
        "RENAME": ("RENAME", key, key),
        "XGROUP": ("XGROUP", "CREATE", key, "g", "0"),
        "XREADGROUP": ("XREADGROUP", "GROUP", "g", "c", "STREAMS", key, ">"),
    }
    return special.get(command) or (command, key, *_ARGUMENTS[command])


async def denied(
    client: redis.asyncio.Redis, wanted: Sequence[tuple[str, ...]]
) -> list[tuple[str, str]]:
    """Return which of ``wanted`` the user may not do, each with the server's words.

    Raises:
        RedisError, OSError: the server was lost meanwhile.
    """
    pool: Any = client.connection_pool
    connection = await pool.get_connection()
    refusals: list[tuple[str, str]] = []
    try:
        for command in ((_MULTI,), *wanted):
            await connection.send_command(*command)
            try:
                await connection.read_response()
            except ResponseError as error:
                refusals.append((command[0], str(error)))
                if command[0] == _MULTI:  # without it all that follows would be carried out
                    return refusals
        await connection.send_command("DISCARD")
        await connection.read_response()
    except (RedisError, OSError):
        await connection.disconnect()  # whatever was queued is forgotten with the connection
        raise
    finally:
        await pool.release(connection)
    return refusals
