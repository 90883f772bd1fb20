"""The embedded servers: they answer, keep what they acknowledged, and never outlive their owner."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from common.doctor.findings import Level
from common.doctor.queue import look_at_redis
from common.errors import GenqError, UsageError
from common.s3 import open_store
from common.settings import Settings, load_settings
from deploy import embedded, processes
from deploy.stack import Stack
from tests.support import servers
from tests.support.servers import eventually_sync

if TYPE_CHECKING:
    from common.objectstore import ObjectStore


def test_redis_keeps_what_it_acknowledged_through_a_kill(tmp_path: Path):
    stack = secrets.token_hex(8)
    first = embedded.start_redis(tmp_path / "redis", stack=stack)
    redis.Redis.from_url(first.url).set("a", "1")
    first.kill()
    again = embedded.start_redis(
        tmp_path / "redis", stack=stack, password=first.password, ports=first.ports
    )
    try:
        assert again.url == first.url
        assert redis.Redis.from_url(again.url).get("a") == b"1"
    finally:
        again.stop()


def test_redis_asks_for_its_password(redis_url: str):
    bare = "redis://" + redis_url.rpartition("@")[2]
    with pytest.raises(redis.AuthenticationError), redis.Redis.from_url(bare) as client:
        client.ping()


def test_the_password_is_not_in_the_process_list(redis_server: embedded.RedisServer):
    argv = Path(f"/proc/{redis_server.process.pid}/cmdline").read_bytes()
    assert redis_server.password.encode() not in argv


def test_s3_keeps_what_it_acknowledged_through_a_kill_and_other_ports(tmp_path: Path):
    stack = secrets.token_hex(8)
    first = embedded.start_s3(tmp_path / "s3", stack=stack, bucket="results")
    open_store(load_settings(**first.settings())).put("x", b"data")
    first.kill()
    again = embedded.start_s3(
        tmp_path / "s3",
        stack=stack,
        bucket="results",
        access_key=first.access_key,
        secret_key=first.secret_key,
    )
    try:
        assert again.ports != first.ports
        kept = open_store(load_settings(**again.settings()))
        assert kept.get("x") == b"data"
        kept.put("y", b"more")
        assert [found.key for found in kept.list("")] == ["x", "y"]
    finally:
        again.stop()
    assert not list(embedded.SOCKET_FOLDER.glob(f"seaweedfs-*-{again.ports[3]}.sock"))


def test_the_store_of_a_test_passes_the_probe_and_is_empty(store: ObjectStore, settings: Settings):
    store.probe()
    assert list(store.list("")) == []
    assert settings.store.startswith("s3://")


def test_servers_end_when_their_owner_is_killed(tmp_path: Path):
    stack = secrets.token_hex(8)
    code = (
        "import sys; from pathlib import Path; from deploy import embedded, processes\n"
        f"folder = Path({str(tmp_path)!r}); stack = {stack!r}\n"
        "warden = processes.guard(stack, log=folder / 'warden.log')\n"
        "server = embedded.start_redis(folder / 'redis', stack=stack)\n"
        "print('up', flush=True); sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout.readline() == b"up\n"
    assert list(processes.members(stack)) == ["redis"]
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    eventually_sync(lambda: not processes.members(stack), seconds=15)


def test_a_server_that_cannot_start_says_why(tmp_path: Path):
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "appendonlydir").write_text("in the way")
    with pytest.raises(GenqError) as caught:
        embedded.start_redis(tmp_path / "redis", stack=secrets.token_hex(8))
    assert "did not start" in caught.value.what
    assert "appendonlydir" in caught.value.why


def test_a_missing_package_names_the_step_that_installs_it():
    with pytest.raises(UsageError, match="make setup"):
        embedded.packaged_binary("no-such-package-of-ours", "server")


def test_two_servers_of_one_kind_do_not_meet():
    with servers.redis_server() as one, servers.redis_server() as two:
        assert one.ports != two.ports
        redis.Redis.from_url(one.url).set("a", "1")
        assert redis.Redis.from_url(two.url).get("a") is None


def test_the_env_of_a_stack_serves_every_tool_and_its_redis_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stack = Stack(tmp_path / "stack")
    stack.claim()
    try:
        stack.start_servers()
        for name, value in stack.environment().items():
            monkeypatch.setenv(name, value)
        settings = load_settings()  # several names of one setting, with the same value
        url = settings.redis_url.get_secret_value()
        assert os.environ["REDIS_URL"] == os.environ["RQ_REDIS_URL"] == url
        assert f"export REDIS_URL={shlex.quote(url)}\n" in stack.env_file.read_text()
        found = asyncio.run(look_at_redis(settings, "producer"))
    finally:
        stack.close()
    assert [(one.name, one.what) for one in found if one.level is not Level.OK] == []
