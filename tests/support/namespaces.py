"""Two hosts with a cable between them: network namespaces of this machine, for tests as root.

    with two_hosts() as (one, two):
        server = two.run(start_a_server)       # a thread of the host's own runs it
        one.run(subprocess.Popen, ...)         # and so do processes that it starts
        two.cut()                              # nothing goes through, and nobody is told
        two.heal()

A socket stays in the namespace of the thread that made it, so a test reaches into a host by a
proxy (:mod:`tests.support.proxy`) that listens here and connects there, or the other way.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.debian import found_or_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CABLE = "cable"
_FOLDER = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


class Host:
    """One namespace: a loopback of its own, and one end of the cable."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=self.enter)

    def enter(self) -> None:
        """Move the calling thread into this host, for good."""
        place = os.open(_FOLDER / self.name, os.O_RDONLY)
        try:
            if _LIBC.setns(place, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {self.name}")
        finally:
            os.close(place)

    def run(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call on this host, and return what it returns."""
        return self._thread.submit(call, *args, **more).result()

    def listener(self, address: str, port: int = 0) -> socket.socket:
        """Return a socket that listens on this host."""
        return self.run(socket.create_server, (address, port))

    def cut(self) -> None:
        """Pull the cable on this side: packets of the other side vanish."""
        self._ip("link", "set", CABLE, "down")

    def heal(self) -> None:
        self._ip("link", "set", CABLE, "up")

    def set_up(self) -> None:
        self._ip("address", "add", f"{self.address}/30", "dev", CABLE)
        self._ip("link", "set", "lo", "up")
        self.heal()

    def close(self) -> None:
        self._thread.shutdown()

    def _ip(self, *words: str) -> None:
        ip("-n", self.name, *words)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that see each other, and nothing else. Skips the test where that cannot be."""
    why = _missing()
    if why:
        pytest.skip(why)
    stem = f"genq-{secrets.token_hex(4)}"
    hosts = (Host(f"{stem}-a", "10.203.0.1"), Host(f"{stem}-b", "10.203.0.2"))
    try:
        try:
            _connect(*hosts)
        except subprocess.CalledProcessError as refusal:
            pytest.skip(f"no namespaces with a cable here: {refusal.stderr.decode().strip()}")
        yield hosts
    finally:
        for host in hosts:
            host.close()
            subprocess.run(["ip", "netns", "delete", host.name], check=False, capture_output=True)


def _connect(one: Host, two: Host) -> None:
    for host in (one, two):
        ip("netns", "add", host.name)
    cable = ("link", "add", CABLE, "netns", one.name, "type", "veth")
    ip(*cable, "peer", "name", CABLE, "netns", two.name)
    for host in (one, two):
        host.set_up()


def _missing() -> str:
    """Return why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if found_or_installed("iproute2", _find_ip) is None:
        return "no ip here: apt-get install iproute2"
    return ""


def _find_ip() -> Path | None:
    found = shutil.which("ip")
    return Path(found) if found else None
