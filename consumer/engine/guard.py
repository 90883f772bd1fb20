"""The parent of an engine: passes signals on, keeps its log, and leaves nothing behind.

Run as a file of its own, with the standard library only::

    python -I -S guard.py LOG LOG_BYTES COMMAND...

It lives in a session of its own between the consumer and the engine, because neither can promise
what it promises together: when the consumer dies (its pipe to our standard input closes, however
it died), or the engine's first process ends, every descendant is killed, those included that went
into other sessions or lost their parents. SIGTERM goes to the engine's first process alone, so
that it can end its own children in order. Ends with the engine's exit code, or 128 + signal.
The log is one file and one older one, each of at most LOG_BYTES; the engine's key is blacked out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

KEY_VARIABLE = "GENQ_ENGINE_API_KEY"
_PR_SET_CHILD_SUBREAPER = 36
_KILL_ROUNDS = 100
_KILL_PAUSE_SECONDS = 0.05


class Log:
    """A file of bounded size; when full, it becomes the older one."""

    def __init__(self, path: Path, limit_bytes: int, secret: bytes) -> None:
        self._path = path
        self._limit = limit_bytes
        self._secret = secret
        self._file = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        """Append; a full disk loses lines, never the engine."""
        if self._secret:
            data = data.replace(self._secret, b"***")
        try:
            os.write(self._file, data)
            if os.fstat(self._file).st_size > self._limit:
                os.close(self._file)
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self._file = self._open()
        except OSError:
            return

    def pump(self, source: int) -> None:
        """Copy whole lines from ``source`` until it ends."""
        rest = b""
        while chunk := os.read(source, 1 << 16):
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            if len(rest) > 1 << 20:  # no line is that long: a progress bar, or binary rubbish
                lines, newline, rest = lines + newline + rest, b"\n", b""
            if newline:
                self.write(lines + newline)
        if rest:
            self.write(rest + b"\n")


def descendants() -> list[int]:
    """Return the ids of all processes below this one, zombies left out."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it ended meanwhile
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
    found: list[int] = []
    ring = {os.getpid()}
    while ring:
        ring = {pid for pid, parent in parents.items() if parent in ring}
        found.extend(ring)
    return found


def kill_all() -> None:
    """Kill every descendant, again until none is left (new ones may come meanwhile)."""
    for _ in range(_KILL_ROUNDS):
        _reap()
        pids = descendants()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not pids:
            return
        time.sleep(_KILL_PAUSE_SECONDS)


def _reap() -> None:
    """Take the exit codes of adopted processes, which nobody else waits for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            continue


def _kill_when_orphaned() -> None:
    while os.read(0, 1):
        pass
    kill_all()
    os._exit(128 + signal.SIGKILL)


def main(argv: list[str]) -> int:
    """Run the command and return its exit code; see the module's words."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    log = Log(Path(argv[0]), int(argv[1]), os.environ.get(KEY_VARIABLE, "").encode())
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: object) -> None:
        if child is not None:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    try:
        child = subprocess.Popen(  # noqa: S603 - the command line is made by consumer.engine.launch
            argv[2:],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # an engine that kills its own group must not hit its guard
        )
    except OSError as error:
        log.write(f"cannot start {argv[2]}: {error}\n".encode())
        return 127
    assert child.stdout is not None
    threading.Thread(target=_kill_when_orphaned, daemon=True).start()
    pump = threading.Thread(target=log.pump, args=(child.stdout.fileno(),), daemon=True)
    pump.start()
    code = child.wait()
    kill_all()
    pump.join(timeout=2.0)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
