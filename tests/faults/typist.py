"""Command lines as people type them, run in this process: exit code, words, and what was shown."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from common import cliutil

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from common.errors import GenqError

MAINS = {
    "gen-producer": "producer.cli",
    "gen-sink": "consumer.sink.cli",
    "gen-consumer": "consumer.cli",
}


class Typist:
    """Types into a shell in ``folder``; ``shown`` are the errors of the last command."""

    def __init__(
        self,
        env: Mapping[str, str],
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.shown: list[GenqError] = []
        self._env = env
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, line: str, **env: str) -> tuple[int, str]:
        """Run a command line; return its exit code and what it said on stderr."""
        words = shlex.split(line)
        self.shown.clear()
        with self._monkeypatch.context() as patch:
            for name, value in {**self._env, "GENQ_WAIT_SECONDS": "0", **env}.items():
                patch.setenv(name, value)
            patch.chdir(self._folder)
            patch.setattr(sys, "argv", words)
            patch.setattr(cliutil, "show_error", self._show)
            self._capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                importlib.import_module(MAINS[words[0]]).main()
        return int(ended.value.code or 0), self._capsys.readouterr().err

    def _show(self, error: GenqError) -> None:
        self.shown.append(error)
        _SHOW(error)


_SHOW = cliutil.show_error


def message(said: str) -> str:
    """Return the message at the end of stderr, without what belongs to this machine."""
    text = said[said.index("Error: ") :]
    for pattern, word in (
        (r"127\.0\.0\.1:\d+", "HOST"),
        (r"\.genq-probe/[0-9a-f]{16}", ".genq-probe/ID"),
        (r"genq-tests/t[0-9a-f]{12}", "genq-tests/ID"),
        (r"\d{4}-\d\d-\d\dT[\d:]+\+00:00", "DATE"),
        (r" connecting to HOST\. .*", " ..."),  # differs by the system
        (r" +\(or name it \w+\)", ""),  # the nearest setting
    ):
        text = re.sub(pattern, word, text)
    return text.rstrip("\n")
