"""One local stack: a folder, its credentials and ports, its servers and services.

The folder is the stack: whoever holds its lock owns it, and everything that ever ran on it can be
found from its path. A start ends what an earlier, killed start has left, and goes on with the
data that is there.

    stack.json      credentials and ports (mode 0600)
    env             the same for a shell: ``. .genq/demo/env`` (mode 0600)
    genq.toml       settings of this stack's services; yours to edit
    lock            held, with its owner's pid, while a gen-local works here
    redis/ s3/      the servers' data
    state/ logs/    the services' state and output
    results/        what was generated, once the run is done
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rich.filesize import decimal

from common.codec import dumps, loads
from common.errors import ConflictError, UsageError
from common.installing import install
from common.private import write_private
from common.settings import CONFIG_FILE_VARIABLE, Settings, load_settings, names_of
from deploy import embedded, processes

if TYPE_CHECKING:
    from collections.abc import Sequence

BUCKET = "genq"
LEAST_ROOM_BYTES = 100 * 10**6
STATE_VERSION = 1
SERVICE_STOP_SECONDS = 15.0
_TOML = """\
# Settings of this local stack's services.
# There is one consumer, and its end is known: what a killed one held is back sooner than on a
# fleet, and nobody wants to wait for it to drain.
lease_seconds = 20
renew_seconds = 5
drain_seconds = 5
"""


@dataclass
class _Identity:
    """What must be the same at each start of a stack."""

    redis_password: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    s3_access_key: str = field(default_factory=lambda: secrets.token_hex(10))
    s3_secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(30))
    redis_ports: list[int] = field(default_factory=list)
    s3_ports: list[int] = field(default_factory=list)
    version: int = STATE_VERSION


class Stack:
    """A local stack whose folder this process owns; :meth:`close` gives it back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.id = f"{self.folder}#{secrets.token_hex(4)}"
        self._lock: IO[str] | None = None
        self._warden: subprocess.Popen[bytes] | None = None
        self._servers: list[embedded.Server] = []
        self._services: list[subprocess.Popen[bytes]] = []
        self._given: dict[str, str] = {}

    def claim(self) -> int:
        """Take the folder, end what a killed owner left there; return how many processes that were.

        Raises:
            ConflictError: another gen-local works there.
            UsageError: the folder cannot be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (self.folder / "lock").open("a+", encoding="ascii")
        except OSError as error:
            raise UsageError(
                f"{self.folder} cannot be used as the stack's folder.",
                why=str(error),
                fix="Name another one with --dir.",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.seek(0)
            pid = self._lock.read().strip() or "unknown"
            raise ConflictError(
                f"Another gen-local works in {self.folder}.",
                why=f"It is process {pid}.",
                fix=f"Wait for it, end it (kill {pid}), or choose another --run or --dir.",
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()
        return processes.end_stack(str(self.folder))

    def start_servers(self) -> None:
        """Start Redis and the S3 server on the folder's data.

        Raises:
            GenqError: one does not start.
            UsageError: the folder's disk has no room for them.
        """
        self._check_room()
        identity = self._identity()
        self._keep(identity)
        self._warden = processes.guard(self.id, log=self.folder / "warden.log")
        redis = embedded.start_redis(
            self.folder / "redis",
            stack=self.id,
            password=identity.redis_password,
            ports=identity.redis_ports,
            maxmemory_bytes=_memory_share(),
        )
        self._servers.append(redis)
        store = embedded.start_s3(
            self.folder / "s3",
            stack=self.id,
            bucket=BUCKET,
            access_key=identity.s3_access_key,
            secret_key=identity.s3_secret_key,
            ports=identity.s3_ports,
        )
        self._servers.append(store)
        identity.redis_ports, identity.s3_ports = list(redis.ports), list(store.ports)
        self._keep(identity)
        self._given = {
            "redis_url": redis.url,
            **store.settings(),
            "state_dir": str(self.folder / "state"),
        }
        self._write_env()

    def settings(self) -> Settings:
        """Return the settings of a service of this stack."""
        return load_settings(**self._given, s3_session_token="")

    @property
    def env_file(self) -> Path:
        """A shell file that makes every command of ours, and ``rq``, look at this stack."""
        return self.folder / "env"

    def environment(self) -> dict[str, str]:
        """Return the environment of this stack's services."""
        hidden = {name for given in self._given for name in names_of(given)}
        hidden.update(names_of("s3_session_token"))
        env = {name: value for name, value in os.environ.items() if name not in hidden}
        return {**env, **self._variables()}

    def start_service(self, command: str, *arguments: str) -> Service:
        """Start one of our commands in the background; its output goes to the logs folder."""
        service = Service(command, self.folder / "logs" / f"{command}.log")
        service.process = processes.spawn(
            [*program(command), *arguments],
            stack=self.id,
            role=command,
            log=service.log,
            env=self.environment(),
        )
        self._services.append(service.process)
        return service

    def _check_room(self) -> None:
        """The S3 server starts on a full disk, and then takes nothing."""
        free = shutil.disk_usage(self.folder).free
        if free < LEAST_ROOM_BYTES:
            raise UsageError(
                f"The disk of {self.folder} has too little room for a stack.",
                why=f"{decimal(free)} are free; it needs {decimal(LEAST_ROOM_BYTES)} at least.",
                fix="Make room there, or name another folder with --dir.",
            )

    def run_command(
        self, argv: Sequence[str], *, capture: bool = False, merge: bool = False
    ) -> tuple[int, str]:
        """Run a command to its end in the stack's environment; return its exit code and output.

        Not captured, it speaks to the terminal, on stderr. ``merge``: what it says there is
        captured, too.
        """
        env = {**self.environment(), processes.MARK: f"{self.id}:command"}
        process = subprocess.Popen(  # noqa: S603 - the argument list is ours
            argv,
            stdout=subprocess.PIPE if capture else sys.stderr,
            stderr=subprocess.STDOUT if merge else None,
            env=env,
            start_new_session=True,
            text=True,
        )
        self._services.append(process)  # type: ignore[arg-type]  # ended alike, whatever it writes
        output, _ = process.communicate()
        return process.returncode, output or ""

    def servers_alive(self) -> bool:
        """Tell whether all servers run."""
        return all(server.alive for server in self._servers)

    def close(self, *, keep_servers: bool = False) -> None:
        """Stop what this stack runs, services first, and give the folder back.

        With ``keep_servers`` Redis and the S3 server go on without an owner.
        """
        for service in reversed(self._services):
            _stop(service)
        if not keep_servers:
            for server in reversed(self._servers):
                server.stop()
        if self._warden is not None and keep_servers:
            processes.dismiss(self._warden)
        elif self._warden is not None:
            processes.end_stack(self.id)
            self._warden.communicate()
        if self._lock is not None:
            self._lock.close()

    def _identity(self) -> _Identity:
        path = self.folder / "stack.json"
        if not path.exists():
            return _Identity()
        try:
            return _Identity(**loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{path} cannot be read.",
                why=str(error),
                fix=f"Its results in object storage are in {self.folder}; to start anew,"
                f" move the folder away: mv {self.folder} {self.folder}.old",
            ) from error

    def _keep(self, identity: _Identity) -> None:
        write_private(self.folder / "stack.json", dumps(asdict(identity)))
        toml = self.folder / "genq.toml"
        if not toml.exists():
            toml.write_text(_TOML, encoding="utf-8")

    def _variables(self) -> dict[str, str]:
        given = self._given
        return {
            **{names_of(name)[0]: value for name, value in given.items()},
            CONFIG_FILE_VARIABLE: str(self.folder / "genq.toml"),
            # By the names that tools of others know.
            "RQ_REDIS_URL": given["redis_url"],
            "REDIS_URL": given["redis_url"],
            "AWS_ACCESS_KEY_ID": given["s3_access_key"],
            "AWS_SECRET_ACCESS_KEY": given["s3_secret_key"],
            "AWS_ENDPOINT_URL_S3": given["s3_endpoint"],
            "AWS_REGION": given["s3_region"],
        }

    def _write_env(self) -> None:
        variables = self._variables()
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        folder = shlex.quote(str(Path(sys.executable).parent))  # where our commands and rq are
        lines.append(f'export PATH={folder}:"$PATH"\n')
        write_private(self.env_file, "".join(lines).encode())


@dataclass
class Service:
    """A service in the background."""

    name: str
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def exit_code(self) -> int | None:
        """Return its exit code once it has ended."""
        return self.process.poll()


def _memory_share() -> int:
    """Return a quarter of this machine's memory: at that, loads wait, and nothing is killed."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=SERVICE_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=processes.KILL_SECONDS)


def program(command: str) -> list[str]:
    """Return how to start a command that was installed beside this Python.

    Raises:
        UsageError: it is not installed.
    """
    beside = Path(sys.executable).with_name(command)
    found = str(beside) if beside.exists() else shutil.which(command)
    if found is None:
        raise UsageError(
            f"The command {command} is not installed.",
            why=f"It is neither beside {sys.executable} nor on PATH.",
            fix=f"make setup    or: {install('local')}",
        )
    return [found]
