"""A headless Chromium, steered through a pipe by its DevTools protocol: no port, no driver."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_SECONDS = 60.0


def find_chromium() -> str | None:
    """Return the browser's program, or None. `make setup` installs it where it may."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@dataclass
class Seen:
    """One page, as it was once loaded."""

    requests: list[str] = field(default_factory=list)  # every address that was asked for
    complaints: list[str] = field(default_factory=list)  # errors and warnings of the console
    text: str = ""  # what is visible
    overflow: int = 0  # px by which it is wider than its window
    shot: bytes = b""  # PNG


class Browser:
    """One Chromium process."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._pending = b""
        self._count = 0
        self._events: list[dict[str, Any]] = []

    def open(
        self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False, media: str = ""
    ) -> Seen:
        """Load a page in a tab of its own, and say what was seen."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable", session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", session, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", session, media=media, features=[scheme])
        self._events.clear()
        self._call("Page.navigate", session, url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._read()
        seen = Seen()
        wide = "document.documentElement.scrollWidth - window.innerWidth"
        seen.overflow = int(self._value(session, wide))
        seen.text = str(self._value(session, "document.body.innerText"))
        shot = self._call("Page.captureScreenshot", session, captureBeyondViewport=True)
        seen.shot = base64.b64decode(shot["data"])
        for event in self._events:
            self._note(seen, event["method"], event["params"])
        self._call("Target.closeTarget", targetId=target)
        return seen

    def _note(self, seen: Seen, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            seen.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            seen.complaints.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            seen.complaints.append(json.dumps(params["args"]))
        elif method == "Runtime.exceptionThrown":
            seen.complaints.append(json.dumps(params["exceptionDetails"]))

    def _value(self, session: str, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", session, expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def _call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        self._count += 1
        order = {"id": self._count, "method": method, "params": params}
        if session:
            order["sessionId"] = session
        os.write(self._send, json.dumps(order).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._count:
                assert "error" not in message, (method, message)
                return dict(message["result"])

    def _read(self) -> dict[str, Any]:
        """Return the next message; events are kept as well."""
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._pending:
            left = deadline - time.monotonic()
            assert left > 0, "Chromium says nothing"
            if select.select([self._receive], [], [], left)[0]:
                more = os.read(self._receive, 1 << 20)
                assert more, "Chromium has ended"
                self._pending += more
        raw, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self._events.append(message)
        return message


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """Run a browser with an empty profile; it and all its children end with the block."""
    from_us, ours = os.pipe()
    theirs, to_us = os.pipe()
    folder = tempfile.mkdtemp(prefix="genq-chromium-")
    # It reads what it is told from handle 3, and answers on handle 4.
    line = f'exec "$@" 3<&{from_us} 4>&{to_us}'
    words = ["bash", "-c", line, "sh", program, *_FLAGS, f"--user-data-dir={folder}"]
    try:
        process = subprocess.Popen(
            words,
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": folder},
        )
        os.close(from_us)
        os.close(to_us)
        try:
            yield Browser(ours, theirs)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=_SECONDS)
    finally:
        os.close(ours)
        os.close(theirs)
        shutil.rmtree(Path(folder), ignore_errors=True)
