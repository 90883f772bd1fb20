"""A process that has imported our programs already, and forks one at a word: a start is cheap.

Crash tests start hundreds of services; importing takes longer than what most of them live for.
They end with the forge, and that with the tests, however these end.
"""

from __future__ import annotations

import ctypes
import importlib
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

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

# What each is started by, and what else is imported before the forks.
PROGRAMS = {
    "gen-sink": (
        "consumer.sink.cli",
        # pandas: pyarrow imports it at its first conversion, where it is installed
        ("common.parts.parquet", "pandas", "consumer.sink.start"),
    ),
    "gen-consumer": (
        "tests.support.fake_consumer",  # with the stand-in for SGLang
        ("consumer.engine.hf_renderer", "transformers.models.auto.tokenization_auto"),
    ),
    "gen-producer": ("producer.cli", ("producer.load.command",)),
}


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
def running_forge(*programs: str) -> Iterator[Forge]:
    """Run a forge for these programs; without any: for the sink."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.forge", *(programs or ("gen-sink",))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield Forge(process)
        process.stdin.close()


def _serve(programs: Sequence[str]) -> None:
    for program in programs:
        module, others = PROGRAMS[program]
        for name in (module, *others):
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork() == 0:
            _keep(order)


def _keep(order: dict) -> None:
    """Fork the command once more, say its number, and note how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    pid = os.fork()
    if pid == 0:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _become(order)
    os.write(1, f"{pid}\n".encode())
    os.close(1)
    _, status = os.waitpid(pid, 0)
    folder = Path(order["folder"])
    (folder / "code.new").write_text(str(os.waitstatus_to_exitcode(status)))
    (folder / "code.new").rename(folder / "code")
    os._exit(0)


def _become(order: dict) -> None:
    main = importlib.import_module(PROGRAMS[order["argv"][0]][0]).main
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
    _serve(sys.argv[1:])
