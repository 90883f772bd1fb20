"""Dramatiq: its Redis broker acknowledges after the work, and retries by itself."""

from __future__ import annotations

import sys

import dramatiq
from asking import BROKER, REDELIVER_SECONDS, ROWS, answer
from dramatiq.brokers.redis import RedisBroker

# A dead worker's messages are taken back by the others after its heartbeat is so old.
dramatiq.set_broker(RedisBroker(url=BROKER, heartbeat_timeout=REDELIVER_SECONDS * 1000))
task = dramatiq.actor(answer)

if __name__ == "__main__" and "load" in sys.argv:
    for number in range(ROWS):
        task.send(number)
