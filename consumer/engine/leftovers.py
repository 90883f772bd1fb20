"""Ends engines whose consumer is gone, before a new one starts."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import structlog

from consumer.engine.process import kill_session
from consumer.engine.records import EngineRecord, forget_same, records

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger(__name__)


def end_leftovers(state_dir: Path) -> list[int]:
    """Kill every recorded engine of this host whose consumer is dead; return their sessions.

    Blocks for up to some seconds: call it in a thread. Leaves alone what belongs to a living
    consumer, to another host, or to a number that the system has given to somebody else. What
    outlives SIGKILL stays on record, for the next start.
    """
    ended = []
    for path, record in records(state_dir).items():
        if record.host != socket.gethostname() or (record.here and record.owned):
            continue
        if record.here and not record.reused:
            if not _end(record):
                continue
            ended.append(record.session)
        forget_same(path, record)  # its place may have been taken while that was killed
    return ended


def _end(record: EngineRecord) -> bool:
    """Kill an engine; return whether nothing of it is left."""
    left = kill_session(record.session)
    if left:
        log.error(
            "engine.leftover_lives",
            session=record.session,
            gpu=record.gpu,
            port=record.port,
            left=list(left),
            fix="It does not end by SIGKILL: its driver may hang, or it is another user's."
            f"  ps -o pid,user,stat,wchan,args -s {record.session}",
        )
    else:
        log.warning("engine.leftover_ended", session=record.session, port=record.port)
    return not left
