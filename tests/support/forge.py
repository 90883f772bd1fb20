"""Our programs as processes, forked from one that has imported them: a start costs no import.

``Popen(["gen-sink", "--burst"], ...)`` and ``run`` are those of :mod:`subprocess`, for the programs
of :data:`PROGRAMS`: ``gen-consumer`` with the stand-in where it would launch SGLang, and
``sglang``, the stand-in itself. The suite starts hundreds, and importing takes longer than what
most of them live for. Whose environment means something to a start itself (``LD_PRELOAD``, ...)
is really started.

Each program has one such process, made at its first start. They end with the tests, and whatever
came of them, however these end.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
STREAMS = 3  # stdin, stdout, stderr
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_FOR_STARTS = re.compile(r"(LD|PYTHON|HF|SSL|OMP|MALLOC)_?\w*|TZ")  # read once, by what is imported
_ORDER_BYTES = 1 << 16

# What each is started by, and what else is imported before the forks.
PROGRAMS = {
    "gen-consumer": (
        "tests.support.fake_consumer",
        ("consumer.engine.hf_renderer", "transformers.models.auto.tokenization_auto"),
    ),
    "gen-producer": ("producer.cli", ("producer.load.command",)),
    "gen-sink": (
        "consumer.sink.cli",
        # pandas: pyarrow imports it at its first conversion, where it is installed
        ("common.parts.parquet", "pandas", "consumer.sink.start"),
    ),
    "rq": ("rq.cli", ()),
    "sglang": ("tests.support.fake_sglang", ()),
}


class Popen(subprocess.Popen[Any]):
    """``args[0]`` is one of :data:`PROGRAMS`."""

    def __init__(self, args: Sequence[object], **options: Any) -> None:
        self._ends: socket.socket | None = None  # says when it has ended, and how
        super().__init__([str(arg) for arg in args], **options)

    def _execute_child(self, args: list[str], *how: Any) -> None:
        executable, preexec, close, passed, cwd, env, *rest = how
        env = dict(os.environ if env is None else env)
        if _for_starts(env) != _for_starts(os.environ):
            code = f"import sys; from {PROGRAMS[args[0]][0]} import main; sys.exit(main())"
            command = [sys.executable, "-c", code, *args[1:]]
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(ROOT))))
            how = (executable, preexec, close, passed, cwd, env, *rest)
            return super()._execute_child(command, *how)  # type: ignore[misc]
        assert preexec is None
        assert not passed
        stdin, _, _, stdout, _, stderr = pipes = rest[3:9]
        order = {"argv": args, "env": env, "cwd": str(cwd or Path.cwd()), "session": rest[14]}
        streams = [fd if fd != -1 else n for n, fd in enumerate((stdin, stdout, stderr))]
        self._ends, theirs = socket.socketpair()
        with theirs:
            _forge(args[0]).order(order, [*streams, theirs.fileno()])
        self.pid = int(self._ends.recv(64))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        return None

    def _internal_poll(self, *args: Any, **more: Any) -> int | None:
        if self._ends is None:
            return super()._internal_poll(*args, **more)  # type: ignore[misc]
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._ends is None:
            return super()._try_wait(flags)  # type: ignore[misc]
        if flags & os.WNOHANG and not select.select([self._ends], [], [], 0)[0]:
            return 0, 0
        with self._ends:
            said = self._ends.recv(64)
        return self.pid, int(said) if said else signal.SIGKILL


def run(
    args: Sequence[object], *, timeout: float = 100, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run one of our programs to its end."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, **options) as process:
        try:
            said = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, *said)
    if check:
        done.check_returncode()
    return done


def _for_starts(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if _FOR_STARTS.fullmatch(name)}


# --- the process that forks


class _Forge:
    """The tests' end of one."""

    def __init__(self, program: str) -> None:
        self._link, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-m", "tests.support.forge", program, str(fd)]
            self._process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=[fd], stdin=subprocess.DEVNULL
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._link.close()
        self._process.wait()

    def order(self, order: dict[str, Any], fds: Sequence[int]) -> None:
        data = json.dumps(order).encode() + b"\n"
        with self._lock:
            sent = socket.send_fds(self._link, [data], fds)
            self._link.sendall(data[sent:])


@cache
def _forge(program: str) -> _Forge:
    return _Forge(program)


def _serve(program: str, link: socket.socket) -> None:
    module, others = PROGRAMS[program]
    for name in (module, *others):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(link, _ORDER_BYTES, STREAMS + 1)
        while data and not data.endswith(b"\n"):
            data += link.recv(_ORDER_BYTES)
        if not data:
            return
        if os.fork() == 0:
            _keep(json.loads(data), fds)
        for fd in fds:
            os.close(fd)


def _keep(order: dict[str, Any], fds: list[int]) -> NoReturn:
    """Fork the program, say its number, wait for its end, and say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    pid = os.fork()
    if pid == 0:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _become(order, fds)
    for fd in fds[:STREAMS]:
        os.close(fd)
    tell = socket.socket(fileno=fds[STREAMS])
    tell.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    try:
        tell.send(str(status).encode())
    finally:
        os._exit(0)


def _become(order: dict[str, Any], fds: list[int]) -> NoReturn:
    if order["session"]:
        os.setsid()
    os.chdir(order["cwd"])
    for number, fd in enumerate(fds[:STREAMS]):
        os.dup2(fd, number)
    os.closerange(STREAMS, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = order["argv"]
    sys.modules["__main__"].__package__ = None  # click says the program's name
    code = 1
    try:
        code = int(importlib.import_module(PROGRAMS[sys.argv[0]][0]).main() or 0)
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - as Python itself does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
