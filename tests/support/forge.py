"""A process that has imported the sink already, and forks one at a word: a start costs no import.

Crash tests start hundreds of sinks; importing takes longer than what most of them live for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Forge:
    """The tests' end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def start(self, env: dict[str, str], argv: Sequence[str], folder: Path) -> int:
        """Fork a command; its output and its exit code go to files of ``folder``."""
        order = {"env": env, "argv": list(argv), "folder": str(folder)}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def running_forge() -> Iterator[Forge]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.forge"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield Forge(process)
        process.stdin.close()


def _serve() -> None:
    import common.parts.parquet  # noqa: F401, PLC0415 - what is imported here is not by each sink
    import consumer.sink.start  # noqa: F401, PLC0415 - the same

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork() == 0:
            _keep(order)


def _keep(order: dict) -> None:
    """Fork the command once more, say its number, and note how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _become(order)
    os.write(1, f"{pid}\n".encode())
    os.close(1)
    _, status = os.waitpid(pid, 0)
    folder = Path(order["folder"])
    (folder / "code.new").write_text(str(os.waitstatus_to_exitcode(status)))
    (folder / "code.new").rename(folder / "code")
    os._exit(0)


def _become(order: dict) -> None:
    from consumer.sink.cli import main  # noqa: PLC0415 - imported before the fork

    for number, name in ((1, "stdout"), (2, "stderr")):
        handle = os.open(f"{order['folder']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, number)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = order["argv"]
    code = 1
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
