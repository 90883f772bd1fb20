"""Real servers for tests: a Valkey and an S3 server of each test process's own.

Nothing outlives the tests: a warden ends the servers also when pytest itself is killed.

``GENQ_TEST_REDIS_SERVER`` names another server binary, for example a redis-server.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
import shutil
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy import embedded, processes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

REDIS_SERVER_VARIABLE = "GENQ_TEST_REDIS_SERVER"
BUCKET = "genq-tests"
POLL_SECONDS = 0.02


@contextmanager
def private_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="genq-test-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def redis_server(**options: Any) -> Iterator[embedded.RedisServer]:
    """A Valkey of the caller's own; for tests that stop, kill or crowd the server."""
    binary = os.environ.get(REDIS_SERVER_VARIABLE)
    stack = secrets.token_hex(8)
    with ExitStack() as after:
        folder = after.enter_context(private_folder())
        warden = processes.guard(stack, log=folder / "warden.log")
        after.callback(warden.communicate)  # ends the pipe: what is still there goes
        server = embedded.start_redis(
            folder / "redis", stack=stack, binary=Path(binary) if binary else None, **options
        )
        after.callback(server.stop)
        yield server


@contextmanager
def s3_server(*, bucket: str = BUCKET) -> Iterator[embedded.S3Server]:
    """A SeaweedFS of the caller's own."""
    stack = secrets.token_hex(8)
    with ExitStack() as after:
        folder = after.enter_context(private_folder())
        warden = processes.guard(stack, log=folder / "warden.log")
        after.callback(warden.communicate)  # ends the pipe: what is still there goes
        server = embedded.start_s3(folder / "s3", stack=stack, bucket=bucket)
        after.callback(server.stop)
        yield server


async def eventually(condition: Callable[[], Any | Awaitable[Any]], seconds: float = 10.0) -> Any:
    """Wait until ``condition`` (a plain or an async function) returns something true; return it.

    Raises:
        AssertionError: it did not within ``seconds``; the last value is named.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition} = {value!r}"
        await asyncio.sleep(POLL_SECONDS)  # poll: this is the waiting that tests use


def eventually_sync(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The same for tests without an event loop."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition} = {value!r}"
        time.sleep(POLL_SECONDS)  # poll: this is the waiting that tests use
    return value
