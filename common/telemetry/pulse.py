"""Says that the event loop turns: to systemd's watchdog, and to whoever asks for our health.

The messages are systemd's sd_notify protocol: one datagram a message to the socket that
``NOTIFY_SOCKET`` names (manual sd_notify(3)). Without that variable nothing is sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BEAT_SECONDS = 2.0
# Longer than any pause that a healthy loop makes, shorter than a probe's patience.
DEAD_SECONDS = 30.0


def notify(message: str) -> bool:
    """Send one message to the service manager; return whether there is one that took it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # noqa: FBT003 - the library's signature
        sender.sendto(message.encode(), address)
        return True
    return False


class Pulse:
    """Beats while the event loop turns."""

    def __init__(self) -> None:
        self._beaten = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether the loop turned in the last half minute; may be asked from any thread."""
        return time.monotonic() - self._beaten < DEAD_SECONDS

    async def beat(self) -> None:
        """Beat for ever."""
        while True:
            self._beaten = time.monotonic()
            notify("WATCHDOG=1")
            await asyncio.sleep(BEAT_SECONDS)


@asynccontextmanager
async def beating() -> AsyncIterator[Pulse]:
    """Tell the service manager that we are ready, and that we live, until the end."""
    pulse = Pulse()
    notify("READY=1")
    task = asyncio.create_task(pulse.beat(), name="pulse")
    try:
        yield pulse
    finally:
        notify("STOPPING=1")
        task.cancel()
