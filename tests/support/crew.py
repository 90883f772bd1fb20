"""Services as processes, under names: started, hurt, started again."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from tests.support import forge
from tests.support.servers import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DRAIN_SECONDS = 90.0


@dataclass
class Member:
    """One service; its state folder and its log stay through all of its lives."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    lives: list[forge.Popen] = field(default_factory=list)  # the last one is the present
    exits: list[int] = field(default_factory=list)  # of the lives that were waited for

    @property
    def code(self) -> int | None:
        """The exit code of the last life, negative for a signal; None while it lives."""
        return self.lives[-1].poll() if self.lives else None

    @property
    def alive(self) -> bool:
        return bool(self.lives) and self.code is None

    @property
    def pids(self) -> list[int]:
        """Of all lives."""
        return [life.pid for life in self.lives]

    def start(self) -> None:
        with (self.folder / "stdout").open("ab") as out, (self.folder / "stderr").open("ab") as err:
            self.lives.append(forge.Popen(self.argv, env=self.env, stdout=out, stderr=err))

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            self.lives[-1].send_signal(number)

    async def ended(self, seconds: float = DRAIN_SECONDS) -> int:
        """Wait for the end of the last life."""
        try:
            await eventually(lambda: not self.alive, seconds)
        except AssertionError:
            raise AssertionError(f"{self.name} did not end:\n{self.last_words()}") from None
        code = self.code
        assert code is not None
        self.exits.append(code)
        return code

    def output(self) -> str:
        """What it said on stdout, in all of its lives."""
        return (self.folder / "stdout").read_text(errors="replace")

    def last_words(self, size: int = 3000) -> str:
        log = self.folder / "stderr"
        return log.read_text(errors="replace")[-size:] if log.exists() else ""

    def engines(self) -> list[psutil.Process]:
        """The engine's processes, its guard left out."""
        with contextlib.suppress(psutil.Error):
            guards = psutil.Process(self.pids[-1]).children()
            return [engine for guard in guards for engine in guard.children(recursive=True)]
        return []


class Crew:
    """All services of one system. Use :meth:`end` at the end, whatever happened."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self._env = env
        self._folder = folder
        self.members: dict[str, Member] = {}

    def start(self, name: str, *argv: str, **env: str) -> Member:
        """Start a new service, or one of the name again, as it was started first."""
        member = self.members.get(name)
        if member is None:
            folder = self._folder / name
            folder.mkdir(parents=True)
            ours = {"GENQ_STATE_DIR": str(folder / "state"), "GENQ_LOG_FORMAT": "json"}
            member = Member(name, argv, {**self._env, **ours, **env}, folder)
            self.members[name] = member
        assert not member.alive, f"{name} is running"
        member.start()
        return member

    async def end(self) -> dict[str, int]:
        """SIGTERM to all, SIGKILL to those that do not end in time; return the exit codes."""
        living = [member for member in self.members.values() if member.alive]
        for member in living:
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGTERM)
        codes = {}
        for member in living:
            try:
                codes[member.name] = await member.ended()
            except AssertionError:
                member.signal(signal.SIGKILL)
                codes[member.name] = await member.ended()
        return codes

    def last_words(self) -> str:
        return "\n".join(f"--- {m.name}\n{m.last_words()}" for m in self.members.values())

    def leftovers(self) -> list[str]:
        """Living processes of ours: the services, and whatever was started with their folders."""
        pids = {pid for member in self.members.values() for pid in member.pids}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                place = process.environ().get("GENQ_STATE_DIR", "")
                ours = process.pid in pids or place.startswith(f"{self._folder}/")
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
        return found
