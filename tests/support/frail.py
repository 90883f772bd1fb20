"""A Valkey that a test stops, kills, puts back to an earlier moment, and follows with a replica."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import redis

from deploy import embedded, processes
from tests.support import servers
from tests.support.proxy import running_proxy
from tests.support.servers import eventually_sync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.proxy import Proxy


class FrailRedis:
    """One server on one folder and one port, however often it ends."""

    def __init__(self, server: embedded.RedisServer) -> None:
        self.server = server
        self.folder = server.log.parent
        # The same stack again at each start, so that the warden ends it, too.
        environment = psutil.Process(server.process.pid).environ()
        self._stack = environment[processes.MARK].rpartition(":")[0]
        self._kept = self.folder.with_name(self.folder.name + "-kept")

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def port(self) -> int:
        return self.server.ports[0]

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, protocol=2)

    def tell(self, *command: Any) -> Any:
        """Send one command, on a connection of its own."""
        with closing(self.client()) as client:
            return client.execute_command(*command)

    def start(self) -> None:
        """Start it again where it was; what it had acknowledged (and kept) is there."""
        old = self.server
        self.server = embedded.start_redis(
            self.folder, stack=self._stack, password=old.password, ports=old.ports
        )
        assert self.server.ports == old.ports

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def keep(self) -> None:
        """Keep a copy of what is on disk at this moment: a snapshot to go back to."""
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self.folder / "appendonlydir", self._kept)

    def go_back(self) -> None:
        """Kill it, and start it from the copy."""
        self.kill()
        shutil.rmtree(self.folder / "appendonlydir")
        shutil.copytree(self._kept, self.folder / "appendonlydir")
        self.start()

    def log_bytes(self) -> int:
        """Return the length of the append-only file."""
        return self._tail().stat().st_size

    def lose_tail(self, keep_bytes: int) -> None:
        """Kill it, cut its append-only file in the middle of a command, and start it."""
        self.kill()
        os.truncate(self._tail(), keep_bytes + 7)
        self.start()

    def _tail(self) -> Path:
        (found,) = (self.folder / "appendonlydir").glob("*.incr.aof")
        return found


@contextmanager
def frail_redis() -> Iterator[FrailRedis]:
    with servers.redis_server() as server:
        frail = FrailRedis(server)
        try:
            yield frail
        finally:
            frail.stop()


@contextmanager
def replica_of(primary: FrailRedis) -> Iterator[tuple[FrailRedis, Proxy]]:
    """A replica, and the proxy through which it follows: a black hole there makes it lag."""
    with ExitStack() as after:
        proxy = after.enter_context(running_proxy(primary.port))
        replica = after.enter_context(frail_redis())
        primary.tell("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        replica.tell("CONFIG", "SET", "masterauth", primary.server.password)
        replica.tell("REPLICAOF", "127.0.0.1", str(proxy.port))
        follow(primary, replica)
        yield replica, proxy


def follow(primary: FrailRedis, replica: FrailRedis) -> None:
    """Wait until the replica has all that the primary has."""

    def level() -> bool:
        with closing(primary.client()) as one, closing(replica.client()) as two:
            theirs, ours = one.info("replication"), two.info("replication")
        up = ours.get("master_link_status") == "up"
        return up and ours["slave_repl_offset"] >= theirs["master_repl_offset"]

    eventually_sync(level, 20)
