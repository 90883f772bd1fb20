"""What SECURITY.md promises, held against a real run on the Redis that deploy/ describes."""

from __future__ import annotations

import re
import socket
import stat

import psutil
import pytest
import redis
import redis.asyncio

from consumer.sink.single import WriterLease
from tests.support.secured import USERS, secured_redis
from tests.support.secured_run import (
    DONE_WITHOUT,
    METADATA,
    PROMPT,
    ROW_ID,
    RUN,
    SecuredRun,
    unwrapped,
    whole_run,
)

SERVICES = [user for user in USERS if user != "admin"]
# One run is looked at by all tests here, in one process (TOGETHER in tests/conftest.py): the first
# pays for all of it.
pytestmark = pytest.mark.timeout(300)
PICKLE = re.compile(rb"\x80[\x02-\x05].*\.", re.DOTALL)


@pytest.fixture(scope="module")
def server():
    with secured_redis() as server:
        yield server


@pytest.fixture(scope="module")
def run(server, s3_server, tmp_path_factory) -> SecuredRun:
    return whole_run(server, s3_server, tmp_path_factory.mktemp("secured"))


# --- the users of Redis


@pytest.mark.row("C10")
def test_each_service_may_do_all_that_it_does(run):
    assert {(entry["object"], entry["reason"]) for entry in run.denied} <= DONE_WITHOUT
    assert (
        "proven: complete and unique"
        in run.said[f"monitor: gen-producer verify {RUN} --allow-failures"]
    )


def test_the_monitor_sees_the_same_as_everybody(run):
    assert '"queue_state":"open"' in run.said[f"monitor: gen-producer status {RUN} --json"]
    assert RUN in run.said[f"monitor: gen-producer status {RUN}"]


def test_rq_info_needs_a_user_who_may_tidy_up(run):
    assert f"queue {RUN} " in run.said["producer: rq info --raw"]
    assert [entry["object"] for entry in run.denied_to_rq_info] == ["zremrangebyscore"]
    assert "zremrangebyscore" in run.said["monitor: rq info --raw"]


async def test_a_single_sink_may_hold_its_lease(server):
    async with redis.asyncio.Redis.from_url(server.url("sink")) as client:
        lease = WriterLease(client)
        await lease.take()
        await lease._lock.reacquire()
        await lease.give_back()
        assert not await lease._lock.locked()
    assert server.denials() == []


DANGEROUS = (
    "FLUSHALL",
    "FLUSHDB",
    "CONFIG GET *",
    "CONFIG SET maxmemory-policy allkeys-lru",
    "KEYS *",
    "SCAN 0",
    "ACL LIST",
    "ACL SETUSER monitor +@all",
    "CLIENT LIST",
    "CLIENT KILL TYPE normal",
    "CLIENT PAUSE 1",
    "SCRIPT FLUSH",
    "FUNCTION FLUSH",
    "MODULE LIST",
    "REPLICAOF NO ONE",
    "BGREWRITEAOF",
    "SAVE",
    "SWAPDB 0 1",
    "MONITOR",
    "SHUTDOWN",
    "GET other:app",
    "SET other:app 1",
    "RENAME rq:queues other:app",
    "COPY genq:runs other:app",
    "PUBLISH other x",
    "SUBSCRIBE other",
)
_WRITES = (
    "SET genq:x 1",
    "DEL rq:queues",
    "EXPIRE genq:runs 1",
    "XADD genq:stream:x * a b",
    "PUBLISH rq:pubsub:x y",
)
FORBIDDEN = {
    "producer": ("HSET rq:worker:x state idle", "SUBSCRIBE rq:pubsub:x"),
    "consumer": ("PUBLISH rq:pubsub:x y",),
    "sink": ("HSET rq:worker:x state idle", "SADD rq:workers x", "SUBSCRIBE rq:pubsub:x"),
    "monitor": _WRITES,
}


@pytest.mark.row("C10")
@pytest.mark.parametrize("user", SERVICES)
def test_no_service_may_do_what_it_must_not(server, user):
    with server.client(user) as client:
        for line in (*DANGEROUS, *FORBIDDEN[user]):
            assert _is_denied(client, line), f"{user} may {line}"
        script = "return redis.call('GET', 'other:app')"
        with pytest.raises(redis.exceptions.ResponseError, match="permission"):
            client.execute_command("EVAL_RO", script, 0)
    server.denials()


def _is_denied(client: redis.Redis, line: str) -> bool:
    try:
        client.execute_command(*line.split(" "))
    except redis.exceptions.NoPermissionError:
        return True
    return False


def test_a_reader_cannot_write_by_a_script(server):
    with server.client("monitor") as client:
        for command in ("EVAL", "EVAL_RO"):
            with pytest.raises(redis.exceptions.ResponseError):
                client.execute_command(command, "redis.call('SET', KEYS[1], 1)", 1, "genq:x")
    server.denials()


def test_nobody_gets_in_without_a_password(server):
    stranger = redis.Redis(port=server.port, protocol=2)
    with stranger, pytest.raises(redis.exceptions.AuthenticationError):
        stranger.ping()


# --- secrets, prompts, names


def test_no_secret_is_in_anything_that_can_be_seen(run):
    shown = "\n".join([*run.said.values(), *run.command_lines])
    kept = b"\n".join(
        inner for value in [*run.values, *run.objects.values()] for inner in unwrapped(value)
    )
    kept += b"\n".join(path.read_bytes() for path in run.state.rglob("*") if path.is_file())
    assert len(set(run.secrets)) == len(run.secrets) == 9
    for number, secret in enumerate(run.secrets):
        assert secret not in shown, f"secret {number} was shown"
        assert secret.encode() not in kept, f"secret {number} was kept"


def test_no_prompt_is_in_any_log(run):
    assert any(PROMPT.encode() in value for value in run.objects.values()) or any(
        PROMPT.encode() in inner for value in run.objects.values() for inner in unwrapped(value)
    )
    shown = "\n".join([*run.said.values(), *run.command_lines])
    logs = [path.read_text() for path in run.state.rglob("*.log")]
    assert '"level":' in shown or '"level": ' in shown, "nothing was logged"
    assert logs, "the engine logged nothing"
    assert "too_long" in run.said[f"monitor: gen-producer failed {RUN}"], "no row failed"
    for text in (PROMPT, ROW_ID, METADATA):
        assert text not in "\n".join([shown, *logs])


def test_names_that_strangers_gave_are_in_no_key(run):
    names = [*run.objects, *(str(path.relative_to(run.state)) for path in run.state.rglob("*"))]
    assert len(run.objects) > 5
    assert not [name for name in names if ".." in name or "row-id" in name or "metadata" in name]
    assert all(key.startswith((f"{RUN}/", ".genq-probe/")) for key in run.objects)


def test_nothing_in_redis_is_pickled(run):
    assert len(run.values) > 100
    for value in run.values:
        for inner in unwrapped(value):
            assert not PICKLE.fullmatch(inner), f"a pickle: {value[:60]!r}"


# --- the host


def test_services_listen_on_loopback_only(run):
    assert len(run.listening) >= 2, "the engine, and the metrics"
    assert all(address.startswith(("127.0.0.1:", "::1:")) for address in run.listening)


def test_the_engine_answers_nobody_without_its_key(run):
    assert run.engine_answers == {"none": 401, "wrong": 401, "own": 200}
    assert len(run.engine_key) >= 32


def test_the_state_folder_is_private(run):
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (run.state, *run.state.rglob("*"))}
    assert len(modes) >= 5
    for path, mode in modes.items():
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} has mode {mode:o}"


def test_other_interfaces_do_not_lead_to_the_server(server):
    own = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    if not own:
        pytest.skip("this machine has no other interface")
    with (
        pytest.raises(OSError, match="refused"),
        socket.create_connection((own[0], server.port), 5),
    ):
        pass
