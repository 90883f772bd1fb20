"""What the server itself says: its time, its memory, and a sample of its log of commands."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

import psutil

from common.queue.scripts import script, script_names
from tests.bench.scale.histogram import Histogram

SAMPLE_ENTRIES = (
    500  # of SLOWLOG at a time, with a limit of 0: the latest commands, whatever they are
)
SAMPLE_SECONDS = 2.0


@dataclass(frozen=True)
class Reading:
    at: float
    cpu: float  # of all threads
    main_cpu: float  # of the thread that runs commands
    busy: float  # seconds that the event loop was not waiting for clients, disk included
    commands: int


class Meter:
    """Reads a server through a blocking client."""

    def __init__(self, client) -> None:
        self.client = client
        self._process = psutil.Process(client.info("server")["process_id"])
        self._names = {script(name).sha.encode(): name for name in script_names()}
        self.server: dict[str, Histogram] = defaultdict(Histogram)

    def read(self) -> Reading:
        stats = self.client.info("stats")
        threads = {one.id: one.user_time + one.system_time for one in self._process.threads()}
        return Reading(
            at=time.perf_counter(),
            cpu=sum(threads.values()),
            main_cpu=threads.get(self._process.pid, 0.0),
            busy=float(stats.get("eventloop_duration_sum", 0)) / 1e6,
            commands=int(stats["total_commands_processed"]),
        )

    def memory(self) -> dict[str, int]:
        found = self.client.info("memory")
        return {
            name: int(found[name])
            for name in ("used_memory", "used_memory_peak", "used_memory_rss")
        }

    def sample_from_now(self) -> None:
        self.client.config_set("slowlog-max-len", SAMPLE_ENTRIES)
        self.client.config_set("slowlog-log-slower-than", 0)
        self.client.slowlog_reset()

    def sample(self) -> None:
        """Take the latest commands' times, by script."""
        for entry in self.client.slowlog_get(SAMPLE_ENTRIES):
            words = entry["command"].split(b" ", 2)
            known = self._names.get(words[1]) if len(words) > 1 else None
            name = known or words[0].decode("ascii", "replace").lower()
            self.server[name].add(entry["duration"] / 1e6)
        self.client.slowlog_reset()

    def sample_no_more(self) -> None:
        self.client.config_set("slowlog-log-slower-than", 10_000)
        self.client.slowlog_reset()

    def command_seconds(self) -> float:
        """The time that all commands took so far, by commandstats."""
        stats = self.client.info("commandstats")
        return sum(one["usec"] for one in stats.values()) / 1e6
