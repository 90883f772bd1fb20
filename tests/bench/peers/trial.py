"""One tool at work: its rate and cost where nothing happens, and what a kill -9 costs it."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from tests.bench.peers.tools import CLIENTS, Place, Tool, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLL_SECONDS = 0.1
EDGE = 0.1  # of the answers at each end that are left out of rate and CPU: starts, and last ones


class EngineLogs:
    """What the engines noted, read as it grows."""

    def __init__(self, paths: list[Path]) -> None:
        self._files = [path.open() for path in paths]
        self.asked = 0
        self.answered: list[float] = []

    def look(self) -> int:
        for file in self._files:
            for line in file:
                what, at = line.split()
                if what == "asked":
                    self.asked += 1
                else:
                    self.answered.append(float(at))
        return len(self.answered)

    def close(self) -> None:
        for file in self._files:
            file.close()


@dataclass(frozen=True)
class Clean:
    """Nothing was killed. ``seconds``: from the first command until the results are complete."""

    rate: float
    cpu_ms: float
    seconds: float
    lost: int
    doubled: int


@dataclass(frozen=True)
class Killed:
    """``seconds``: from the restart until no new result came any more."""

    lost: int
    doubled: int
    asked_again: int
    seconds: float


class Crew:
    """The processes of a tool, each with a process group of its own."""

    def __init__(self, tool: Tool, place: Place) -> None:
        self._tool, self._place = tool, place
        self._running: list[subprocess.Popen[bytes]] = []

    def load(self) -> None:
        if self._tool.load:
            self._run(self._tool.load)

    def start(self, *, again: bool = False) -> None:
        log = (self._place.folder / "clients.log").open("ab")
        with log:
            for argv in self._tool.work:
                self._running.append(
                    subprocess.Popen(
                        argv,
                        env=self._place.env(),
                        cwd=CLIENTS,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        if again and self._tool.again:
            self._run(self._tool.again)

    def _run(self, argv: tuple[str, ...]) -> None:
        done = subprocess.run(
            argv, env=self._place.env(), cwd=CLIENTS, capture_output=True, timeout=120, check=False
        )
        assert done.returncode == 0, (argv, done.stdout[-2000:], done.stderr[-2000:])

    def over(self) -> bool:
        return self._tool.ends and all(one.poll() is not None for one in self._running)

    def cpu_seconds(self) -> float:
        """Of all processes that live, and of those of theirs that ended."""
        total = 0.0
        for one in self._running:
            with suppress(psutil.Error):
                top = psutil.Process(one.pid)
                for process in (top, *top.children(recursive=True)):
                    with suppress(psutil.Error):
                        times = process.cpu_times()
                        total += times.user + times.system
                        total += times.children_user + times.children_system
        return total

    def kill(self) -> None:
        """As when the machine is gone: all of it at once, without a word."""
        for one in self._running:
            with suppress(psutil.Error):
                top = psutil.Process(one.pid)
                top.suspend()  # so that it starts no more while its children are counted
                for process in (*top.children(recursive=True), top):
                    with suppress(psutil.Error):
                        process.kill()
        for one in self._running:
            one.wait()
        self._running.clear()


def clean(tool: Tool, place: Place, logs: EngineLogs, *, patience_seconds: float) -> Clean:
    """Let a tool answer all rows."""
    crew, began = Crew(tool, place), time.monotonic()
    first, last = int(place.rows * EDGE), int(place.rows * (1 - EDGE))
    cpu: dict[int, tuple[int, float]] = {}
    with ExitStack() as after:
        after.callback(crew.kill)
        crew.load()
        crew.start()

        def step() -> None:
            answered = logs.look()
            for edge in (first, last):
                if answered >= edge and edge not in cpu:
                    cpu[edge] = (answered, crew.cpu_seconds())

        _until_quiet(tool, place, crew, step, patience_seconds)
        seconds = time.monotonic() - began
    times = sorted(logs.answered)
    found = rows_of(tool, place)
    assert len(times) >= last, f"{tool.name}: {len(times)} answers; see {place.folder}"
    (some, before), (more, later) = cpu[first], cpu[last]
    return Clean(
        rate=(last - first) / (times[last - 1] - times[first - 1]),
        cpu_ms=(later - before) / max(1, more - some) * 1e3,
        seconds=seconds,
        lost=place.rows - len(found),
        doubled=sum(count - 1 for count in found.values()),
    )


def killed(tool: Tool, place: Place, logs: EngineLogs, *, patience_seconds: float) -> Killed:
    """Kill all of a tool in the middle, and start it again as its documentation says."""
    crew = Crew(tool, place)
    with ExitStack() as after:
        after.callback(crew.kill)
        crew.load()
        crew.start()
        deadline = time.monotonic() + patience_seconds
        while logs.look() < place.rows // 2:
            assert time.monotonic() < deadline, f"{tool.name} does not get on; see {place.folder}"
            time.sleep(POLL_SECONDS)  # poll: the engines' notes
        crew.kill()
        began = time.monotonic()
        crew.start(again=True)
        last = _until_quiet(tool, place, crew, logs.look, patience_seconds)
    logs.look()
    found = rows_of(tool, place)
    return Killed(
        lost=place.rows - len(found),
        doubled=sum(count - 1 for count in found.values()),
        asked_again=logs.asked - len(found),
        seconds=last - began,
    )


def _until_quiet(
    tool: Tool, place: Place, crew: Crew, step: Callable[[], object], patience_seconds: float
) -> float:
    """Wait until all rows are there, or none came for long; return when the last one came."""
    seen, last = -1, time.monotonic()
    while True:
        step()
        ended = crew.over()  # asked first: what it wrote is then there
        count = len(rows_of(tool, place))
        if count != seen:
            seen, last = count, time.monotonic()
        if ended or count >= place.rows or time.monotonic() - last > patience_seconds:
            return last
        time.sleep(POLL_SECONDS)  # poll: files and processes of other people's programs
