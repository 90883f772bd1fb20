"""A whole pipeline of real processes, some of which are killed: for tests end to end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil
import redis.asyncio

from common.audit import RunCounts, check_counts
from common.ids import RunName
from common.queue.prompts import QueueLimits
from common.queue.run_state import Runs
from tests.support import forge

if TYPE_CHECKING:
    from pathlib import Path

SHORT_LEASES = {
    "GENQ_LEASE_SECONDS": "3",
    "GENQ_RENEW_SECONDS": "0.5",
    "GENQ_RETRY_BASE_SECONDS": "0.2",
}


@dataclass
class Fleet:
    """Starts services as users do, and ends all of them."""

    env: dict[str, str]
    folder: Path
    members: dict[str, forge.Popen] = field(default_factory=dict)

    def producer(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = ["gen-producer", *args]
        return forge.run(command, env=self.env, capture_output=True, text=True, timeout=120)

    def start(self, name: str, program: str, *args: str) -> None:
        """Start (again) a service under a name; its state folder is its own and is kept."""
        state = {"GENQ_STATE_DIR": str(self.folder / f"state-{name}"), "GENQ_LOG_FORMAT": "json"}
        with self.log(name).open("ab") as log:
            self.members[name] = forge.Popen(
                [program, *args],
                env={**self.env, **state},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def kill(self, name: str) -> None:
        """Kill -9 the service alone; its children are its own affair."""
        self.members[name].kill()
        self.members[name].wait()

    def alive(self, name: str) -> bool:
        return self.members[name].poll() is None

    def counts(self, run: str) -> RunCounts:
        """The audit's sample of a run, which is checked each time it is looked at."""

        async def sample() -> RunCounts:
            async with redis.asyncio.Redis.from_url(self.env["GENQ_REDIS_URL"]) as client:
                return await Runs(client, QueueLimits()).sample(RunName(run))

        counts = asyncio.run(sample())
        assert check_counts(counts) == []
        return counts

    def close(self) -> None:
        """End all services as an operator does.

        Raises:
            AssertionError: one did not end within the grace; it was killed.
        """
        for process in self.members.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deaf = []
        for name, process in self.members.items():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                deaf.append(name)
        assert not deaf, f"{deaf} did not end at SIGTERM\n{self.last_words()}"

    def last_words(self) -> str:
        return "\n".join(
            f"--- {name}\n{self.log(name).read_text(errors='replace')[-1500:]}"
            for name in self.members
        )

    def leftovers(self) -> list[str]:
        """Command lines of processes that still carry this fleet's folder in their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if str(self.folder) in environment.get("GENQ_STATE_DIR", ""):
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found
