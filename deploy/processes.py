"""Child processes that can always be found again: the ground under the local stack.

Every process of a stack carries the stack's id in its environment (``GENQ_STACK``), and so does
every process that it starts in turn. So all of them are found whoever died in between, without
pid files that a kill could leave wrong, and a pid that was given out anew is never mistaken.
The id is ``owner#start``: the owner (a folder) alone stands for the processes of all its starts.

:func:`guard` starts a warden: a small process that ends the stack when its owner is gone, however
the owner went.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

MARK = "GENQ_STACK"
POLL_SECONDS = 0.05
TERM_SECONDS = 10.0
KILL_SECONDS = 5.0

# Services first, while the servers that they hand their work back to are still there.
SERVERS = ("redis", "s3")


def spawn(
    argv: Sequence[str],
    *,
    stack: str,
    role: str,
    log: Path,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> subprocess.Popen[bytes]:
    """Start a process of a stack in a session of its own, its output appended to ``log``.

    A session of its own keeps the terminal's Ctrl-C away from it: its owner decides its end.

    Raises:
        OSError: it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(  # noqa: S603 - the argument list is ours
            argv,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**(os.environ if env is None else env), MARK: f"{stack}:{role}"},
            start_new_session=True,
        )
    assert process.stdin is not None
    # A broken pipe means that it died at once: the caller sees that by its exit code.
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(stdin)
    return process


def members(stack: str) -> dict[str, list[psutil.Process]]:
    """Return the living processes of a stack by role, this one left out.

    An id without its ``#start`` stands for all starts.
    """
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            owner, _, role = process.environ().get(MARK, "").rpartition(":")
            ours = stack in (owner, owner.rpartition("#")[0])
            if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.setdefault(role, []).append(process)
    return found


def end_stack(stack: str, *, term_seconds: float = TERM_SECONDS) -> int:
    """End every process of a stack, services before servers; return how many there were.

    A process that does not end by SIGTERM within ``term_seconds`` is killed. This one is spared.
    """
    roles = members(stack)
    services = [p for role, group in roles.items() if role not in SERVERS for p in group]
    end_processes(services, term_seconds=term_seconds)
    rest = [p for group in members(stack).values() for p in group]
    end_processes(rest, term_seconds=term_seconds)
    return len(services) + len(rest)


def end_processes(processes: Sequence[psutil.Process], *, term_seconds: float) -> None:
    """End processes by SIGTERM, and by SIGKILL those that are left after ``term_seconds``."""
    _signal(processes, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=term_seconds)
    _signal(alive, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=KILL_SECONDS)


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def guard(stack: str, *, log: Path) -> subprocess.Popen[bytes]:
    """Start the warden of a stack: it ends the stack when this process is gone.

    It waits for the end of a pipe that only this process holds, so no death escapes it. Call
    :func:`dismiss` to let it go and leave the stack running.
    """
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603 - the argument list is ours
            # By its path: the working folder may hold other packages of these names.
            [sys.executable, __file__, stack],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def dismiss(warden: subprocess.Popen[bytes]) -> None:
    """Send the warden home; the stack is left as it is."""
    assert warden.stdin is not None
    with suppress(BrokenPipeError), warden.stdin as pipe:
        pipe.write(b"dismissed")
    warden.wait(timeout=KILL_SECONDS)


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Return True as soon as ``condition`` holds, False after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def last_lines(log: Path, count: int = 15) -> str:
    """Return the last lines of a log, for an error message."""
    if not log.exists():
        return "(no output)"
    lines = log.read_bytes()[-8192:].decode(errors="replace").splitlines()
    return "\n".join(lines[-count:]) or "(no output)"


def _warden() -> None:
    """Wait until the owner closes the pipe; unless it said goodbye, end the stack."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.stdin.buffer.read() == b"":
        end_stack(sys.argv[1])


if __name__ == "__main__":
    _warden()
