"""gen-producer as people type it: in this process, or in its own where it is to be killed."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from common.failpoint import VARIABLE
from producer import cli
from tests.support import forge

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMAND = (sys.executable, "-c", "from producer.cli import main; main()")


class Said(NamedTuple):
    """What a command printed."""

    out: str
    err: str


def load_options(*words: str) -> dict[str, Any]:
    """Return the options of ``gen-producer load WORDS`` as the command gets them.

    Below its program's context: a command keeps the help option of the first one that it sees.
    """
    whole = cli.cli.make_context("gen-producer", ["load"])
    return cli.cli.commands["load"].make_context("load", [*words], parent=whole).params


class Producer:
    """Runs commands against the servers of a test, and checks their exit codes."""

    def __init__(
        self,
        env: Mapping[str, str],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self._env = env
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: object, stdin: bytes = b"", code: int = 0) -> Said:
        with self._monkeypatch.context() as patch:
            for name, value in self._env.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["gen-producer", *map(str, words)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))
            self._capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                cli.main()
        said = Said(*self._capsys.readouterr())
        assert ended.value.code == code, (ended.value.code, said)
        return said

    def killed_at(self, failpoint: str, *words: object) -> None:
        env = {**self._env, VARIABLE: failpoint}
        done = forge.run(["gen-producer", *words], env=env, capture_output=True)
        assert done.returncode == -9, (done.returncode, done.stdout, done.stderr)

    def start(self, *words: object) -> subprocess.Popen[str]:
        return forge.Popen(
            ["gen-producer", *words],
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
