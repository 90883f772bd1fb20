"""The pipeline on a machine with GPUs: embedded Redis and S3 server, our commands as processes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import psutil

from common.errors import Exit
from consumer.engine.guard import KEY_VARIABLE
from consumer.engine.records import records
from deploy import embedded, processes
from tests.bench.gpu.counter import Door

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

START_SECONDS = 400.0  # the first start on a machine compiles kernels
RUN_SECONDS = 900.0
POLL_SECONDS = 0.1
# Installed scripts are not needed: what they call is.
PROGRAMS = {
    "gen-producer": "from producer.cli import main; main()",
    "gen-consumer": "from consumer.cli import main; main()",
    "gen-sink": "from consumer.sink.cli import main; main()",
}


@dataclass
class Town:
    """Servers and settings that all commands share."""

    folder: Path
    env: dict[str, str]
    transcript: Path

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", PROGRAMS[words[0]], *words[1:]]

    def run(self, *words: str) -> str:
        """Run one of our commands to its end; keep what it printed; return its stdout.

        Raises:
            AssertionError: it failed. Dead letters are no failure: they are shown.
        """
        began = time.monotonic()
        done = subprocess.run(
            self.command(*words),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        self.say(
            f"$ {' '.join(words)}\n{done.stdout}{done.stderr}"
            f"[exit code {done.returncode}, {time.monotonic() - began:.1f} s]\n"
        )
        assert done.returncode in (Exit.DONE, Exit.DEAD_LETTERS), (
            f"{words}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        )
        return done.stdout

    def say(self, text: str) -> None:
        with self.transcript.open("a") as file:
            file.write(text.replace(str(self.folder), "STATE") + "\n")


@contextmanager
def town(folder: Path, out: Path, settings: dict[str, str]) -> Iterator[Town]:
    """Bring the servers up in ``folder``; nothing of them is left."""
    folder.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    stack = secrets.token_hex(8)
    with ExitStack() as after:
        warden = processes.guard(stack, log=folder / "warden.log")
        after.callback(warden.communicate)
        redis = embedded.start_redis(folder / "redis", stack=stack)
        after.callback(redis.stop)
        s3 = embedded.start_s3(folder / "s3", stack=stack, bucket="bench")
        after.callback(s3.stop)
        ours = {"redis_url": redis.url, "state_dir": str(folder / "state"), **s3.settings("gpu")}
        env = {f"GENQ_{name.upper()}": value for name, value in {**ours, **settings}.items()}
        yield Town(folder, {**os.environ, **env}, out / "transcript.txt")


class Consumer:
    """A consumer process and its engine."""

    def __init__(self, place: Town, out: Path, gpu: int, flags: Sequence[str]) -> None:
        self.gpu = gpu
        self._place = place
        self.log = out / f"consumer-{gpu}.log"
        words = ["gen-consumer", "--gpu", str(gpu), "--", *flags]
        place.say(f"$ {' '.join(words)} &\n")
        self._began = time.monotonic()
        # What an earlier consumer of this card logged is none of this one's doing.
        self._before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                place.command(*words),
                env={**place.env, "GENQ_LOG_FORMAT": "json"},
                stdout=log,
                stderr=log,
            )

    def wait_ready(self, incarnation: int = 1) -> float:
        """Return the seconds from the start, or from the call for a later incarnation."""
        began = self._began if incarnation == 1 else time.monotonic()
        deadline = time.monotonic() + START_SECONDS
        while not any(
            event.get("state") == "ready" and event.get("incarnation") == incarnation
            for event in self.events("engine.state")
        ):
            assert self.process.poll() is None, self.last_words()
            assert time.monotonic() < deadline, self.last_words()
            time.sleep(POLL_SECONDS)  # poll: a process that says when
        return time.monotonic() - began

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it logged under a name."""
        found = []
        for line in self.log.read_bytes()[self._before :].splitlines():
            with suppress(ValueError):
                event = orjson.loads(line)
                if event.get("event") == name:
                    found.append(event)
        return found

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def door(self) -> Door | None:
        """Where its engine answers now; None while there is none."""
        for record in records(self._place.folder / "state").values():
            if record.gpu == self.gpu and record.owner == self.process.pid:
                with suppress(psutil.Error, KeyError):
                    key = psutil.Process(record.session).environ()[KEY_VARIABLE]
                    return Door(f"http://127.0.0.1:{record.port}", key)
        return None

    def scheduler(self) -> psutil.Process:
        """The engine's process that decodes."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "scheduler" in " ".join(process.cmdline()) + process.name():
                    return process
        raise AssertionError("no process of the engine is called scheduler")

    def end(self) -> int:
        """SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=120.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait(timeout=30.0)
        self._place.say(f"[gen-consumer --gpu {self.gpu} after SIGTERM: exit code {code}]\n")
        return code
