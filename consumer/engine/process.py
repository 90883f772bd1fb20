"""One running engine as this process sees it: its guard's pid, its record on disk, its log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import EngineError, UsageError
from common.private import private_folder
from consumer.engine import guard
from consumer.engine.launch import engine_environment
from consumer.engine.records import EngineRecord, forget_record, write_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumer.engine.api import EngineSpec, Launch

LOG_BYTES = 16 << 20
_MARK = "genq: an engine starts:"  # with the time and its flags; earlier lines are of earlier ones
_TAIL_BYTES = 64 << 10
_KILL_SECONDS = 10.0
_PORT_SECONDS = 30.0


class EngineProcess:
    """An engine behind its guard. Made by :meth:`start`; ended by :meth:`end` alone."""

    def __init__(self, process: asyncio.subprocess.Process, spec: EngineSpec) -> None:
        self._process = process
        self._spec = spec
        self.log = log_path(spec)

    @classmethod
    async def start(cls, launch: Launch, spec: EngineSpec) -> EngineProcess:
        """Start the engine in a session of its own, and record it before anything can go wrong.

        Raises:
            EngineError: the port is taken, or there is no way to start a process or to log it.
        """
        command = (sys.executable, "-I", "-S", guard.__file__, str(log_path(spec)), str(LOG_BYTES))
        try:
            await _refuse_taken(spec)
            await asyncio.to_thread(mark_start, spec)
            process = await asyncio.create_subprocess_exec(
                *command,
                *launch.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=engine_environment(os.environ, launch.env),
                start_new_session=True,
            )
        except UsageError as error:  # the state folder is not private any more
            raise EngineError(error.what, why=error.why, fix=error.fix) from error
        except (OSError, RuntimeError) as error:  # the latter where no thread can be started
            raise not_started(error, spec) from error
        started = cls(process, spec)
        try:
            await asyncio.to_thread(write_record, EngineRecord.of(process.pid, spec), spec)
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError, RuntimeError):
                await started.end(0.0)  # nobody could find it after a kill of ours
            raise EngineError(
                "The engine's process could not be recorded, so it was ended.",
                why=str(error),
                fix=f"Make room for files in {spec.state_dir} (GENQ_STATE_DIR).",
            ) from error
        return started

    @property
    def pid(self) -> int:
        """The guard's process id, which is also the id of the engine's session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code once all has ended, 128 + signal for a killed engine; else None."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until the engine has ended, and with it every process that it started."""
        return await self._process.wait()

    async def end(self, grace_seconds: float) -> None:
        """SIGTERM, the grace, then SIGKILL to all; then wait until the port is free again.

        Returns when nothing of the engine is left. Safe to call again and after it died by itself.
        """
        if self.returncode is None and grace_seconds > 0:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            await self._ended(grace_seconds)
        if self.returncode is None and self._process.stdin is not None:
            self._process.stdin.close()  # the guard takes that as the order to kill
            await self._ended(_KILL_SECONDS)
        # The guard itself may have been killed: then its session may still live.
        left = await asyncio.to_thread(kill_session, self.pid)
        await self._ended(_KILL_SECONDS)
        with contextlib.suppress(OSError):  # the next start meets the same, and tells it
            await port_free(self._spec.host, self._spec.port, seconds=_PORT_SECONDS)
            if not left:  # else a later start finds by the record what outlived SIGKILL
                await asyncio.to_thread(forget_record, self._spec)

    async def _ended(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)

    def last_lines(self) -> list[str]:
        """Return the last lines that this engine wrote (reads a file; at most 64 kB of it)."""
        return last_start(tail(self.log))


def not_started(error: Exception, spec: EngineSpec) -> EngineError:
    """Return what a person is told of a start that the system refused."""
    return EngineError(
        "The engine's process could not be started.",
        why=str(error),
        fix="Look at this user's limits of processes and open files (ulimit -a), at the machine's"
        f" memory, and at the room in {spec.state_dir} (GENQ_STATE_DIR).",
    )


async def _refuse_taken(spec: EngineSpec) -> None:
    if not await port_free(spec.host, spec.port, seconds=0.0):
        raise EngineError(
            f"Port {spec.port} on {spec.host} is taken.",
            why="Another process listens there, so that the engine cannot.",
            fix="Start gen-consumer again: it takes a port that is free then."
            f"  Who has this one: ss -ltnp 'sport = :{spec.port}'",
        )


def log_path(spec: EngineSpec) -> Path:
    """Return where the engine's output is kept."""
    return spec.state_dir / "engines" / f"{spec.name}.log"


def tail(path: Path) -> list[str]:
    """Return the last lines of a file, none if it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def mark_start(spec: EngineSpec) -> None:
    """Write into the log that another engine starts: it outlives engines, and consumers.

    Raises:
        OSError: it cannot be written. What stands in it would pass for this engine's words.
    """
    path = log_path(spec)
    private_folder(path.parent)
    line = f"{_MARK} {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {' '.join(spec.flags)}\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def last_start(lines: Sequence[str]) -> list[str]:
    """Return what a log says since the last mark; all, where that is further back."""
    marks = [at for at, line in enumerate(lines) if line.startswith(_MARK)]
    return list(lines[marks[-1] + 1 :] if marks else lines)


def session_members(sid: int) -> list[int]:
    """Return the live processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == sid and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def kill_session(sid: int, *, seconds: float = _KILL_SECONDS) -> Sequence[int]:
    """Kill what is left of a session; return whom it did not get in time."""
    deadline = time.monotonic() + seconds
    while members := session_members(sid):
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return members
        time.sleep(0.05)
    return ()


async def port_free(host: str, port: int, *, seconds: float) -> bool:
    """Wait up to ``seconds`` until a server could listen there; return whether it could."""
    deadline = time.monotonic() + seconds
    while not _bindable(host, port):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.1)
    return True


def _bindable(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
