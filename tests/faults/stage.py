"""The servers of a chaos run, and ways to them that can be broken: one to Redis a service."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.s3 import open_store
from common.settings import load_settings
from deploy import embedded, processes
from tests.support.proxy import running_proxy
from tests.support.s3_proxy import s3_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from common.objectstore import ObjectStore
    from tests.support.proxy import Proxy
    from tests.support.s3_proxy import S3Proxy

LEASE_SECONDS = 2.0
SINK_SECONDS = 0.5
SETTINGS = {
    "GENQ_LEASE_SECONDS": str(LEASE_SECONDS),
    "GENQ_RENEW_SECONDS": "0.5",
    "GENQ_RETRY_BASE_SECONDS": "0.2",
    "GENQ_RETRY_CAP_SECONDS": "2",
    "GENQ_DRAIN_SECONDS": "3",
    "GENQ_HONESTY": "false",  # faults are set for the first answers
}


class Redis:
    """A Valkey that can be killed, and comes back on what it had on disk."""

    def __init__(self, folder: Path, stack: str) -> None:
        self._folder, self._stack = folder, stack
        self.server = embedded.start_redis(folder, stack=stack)
        self.port, self.url = self.server.ports[0], self.server.url

    def kill(self) -> None:
        self.server.kill()

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        old = self.server
        self.server = embedded.start_redis(
            self._folder, stack=self._stack, password=old.password, ports=old.ports
        )
        assert self.server.url == self.url, "its port was taken meanwhile"


@dataclass
class Stage:
    """Everything that services share, whole and breakable."""

    folder: Path
    redis: Redis
    store: ObjectStore  # straight to the server
    links: dict[str, Proxy]  # to Redis, by service
    s3: S3Proxy
    env: dict[str, str]

    def env_of(self, service: str) -> dict[str, str]:
        """The environment of a service: its own way to Redis, the common one to S3."""
        return {"GENQ_REDIS_URL": self.links[service].url(self.redis.url)}


@contextmanager
def stage(folder: Path, s3: embedded.S3Server, services: Sequence[str]) -> Iterator[Stage]:
    """Set the stage in ``folder``, which it makes, with a prefix of its own in ``s3``."""
    folder.mkdir(parents=True, exist_ok=True)
    stack = secrets.token_hex(8)
    with ExitStack() as after:
        warden = processes.guard(stack, log=folder / "warden.log")
        after.callback(warden.communicate)  # ends the pipe: what is still there goes
        redis = Redis(folder / "redis", stack)
        after.callback(redis.stop)
        proxy = after.enter_context(s3_proxy(s3))
        links = {name: after.enter_context(running_proxy(redis.port)) for name in services}
        given = s3.settings(prefix=f"chaos-{secrets.token_hex(4)}")
        through = {**given, "s3_endpoint": proxy.url}
        env = {**os.environ, **{f"GENQ_{name.upper()}": text for name, text in through.items()}}
        yield Stage(
            folder,
            redis,
            open_store(load_settings(redis_url=redis.url, **given)),
            links,
            proxy,
            {**env, **SETTINGS},
        )
