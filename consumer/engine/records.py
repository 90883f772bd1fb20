"""Who runs which engine on this host: small files by which the next start finds leftovers.

A consumer that is killed takes its engine along (:mod:`consumer.engine.guard`), unless the guard
was killed with it. What then stays is found here: by the recorded session, if that session is
still the one that was recorded.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import psutil

from common.private import write_private

if TYPE_CHECKING:
    from consumer.engine.api import EngineSpec

_SAME_SECONDS = 2.0  # two readings of a process' start time differ by less


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """One engine: its guard and session, and the consumer that owns it."""

    host: str
    boot: str
    session: int  # the guard's pid
    started: float  # the guard's start time
    owner: int
    owner_started: float
    gpu: int | None
    port: int

    @classmethod
    def of(cls, session: int, spec: EngineSpec) -> EngineRecord:
        """Return the record of an engine that this process has just started."""
        return cls(
            host=socket.gethostname(),
            boot=_boot(),
            session=session,
            started=start_time(session) or 0.0,
            owner=os.getpid(),
            owner_started=start_time(os.getpid()) or 0.0,
            gpu=spec.gpu,
            port=spec.port,
        )

    @property
    def here(self) -> bool:
        """Whether its process ids mean anything: this host, since its last boot."""
        return self.host == socket.gethostname() and self.boot == _boot()

    @property
    def owned(self) -> bool:
        """Whether the consumer that started it is alive."""
        return same_process(self.owner, self.owner_started)

    @property
    def reused(self) -> bool:
        """Whether the session's number belongs to somebody else by now."""
        return psutil.pid_exists(self.session) and not same_process(self.session, self.started)


def start_time(pid: int) -> float | None:
    """Return when a process started, None if there is none."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def same_process(pid: int, started: float) -> bool:
    """Return whether ``pid`` is still the process that started then."""
    now = start_time(pid)
    return now is not None and abs(now - started) < _SAME_SECONDS


def record_path(spec: EngineSpec) -> Path:
    """Return where an engine's record is."""
    return spec.state_dir / "engines" / f"{spec.name}.json"


def write_record(record: EngineRecord, spec: EngineSpec) -> None:
    """Write a record in one step."""
    write_private(record_path(spec), orjson.dumps(asdict(record)))


def forget_record(spec: EngineSpec) -> None:
    """Remove a record, if it is there."""
    record_path(spec).unlink(missing_ok=True)


def records(state_dir: Path) -> dict[Path, EngineRecord]:
    """Return all readable records; a broken one counts as none."""
    paths = sorted((state_dir / "engines").glob("*.json"))
    return {path: record for path in paths if (record := _read(path)) is not None}


def forget_same(path: Path, record: EngineRecord) -> None:
    """Remove a record that was read a while ago, unless another stands in its place by now."""
    if _read(path) == record:
        path.unlink(missing_ok=True)


def _read(path: Path) -> EngineRecord | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return EngineRecord(**orjson.loads(path.read_bytes()))
    return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
