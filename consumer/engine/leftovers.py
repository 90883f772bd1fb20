"""Ends engines whose consumer is gone, before a new one starts."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import structlog

from consumer.engine.process import kill_session
from consumer.engine.records import records

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger(__name__)


def end_leftovers(state_dir: Path) -> list[int]:
    """Kill every recorded engine of this host whose consumer is dead; return their sessions.

    Blocks for up to some seconds: call it in a thread. Leaves alone what belongs to a living
    consumer, to another host, or to a number that the system has given to somebody else.
    """
    ended = []
    for path, record in records(state_dir).items():
        if record.host != socket.gethostname() or (record.here and record.owned):
            continue
        if record.here and not record.reused:
            left = kill_session(record.session)
            ended.append(record.session)
            log.warning(
                "engine.leftover_ended", session=record.session, port=record.port, left=list(left)
            )
        path.unlink(missing_ok=True)
    return ended
