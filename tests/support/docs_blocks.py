"""Blocks of command output in Markdown, made by running the commands that they show.

    <!-- made: here -->          or: stack
    ```console
    $ gen-consumer profiles
    ...
    ```

A line that begins with ``$ `` is a command, what follows is its output. ``here`` blocks need no
server: their commands run in this process, and `make test` compares them. ``stack`` blocks are
one session on the local stack, in the order of PAGES (`tests/support/docs_stack.py`). With
``stack, from: WORDS`` the output is shown from the line on that begins with these words.

What differs from run to run is made constant (`tidy`). What differs from machine to machine is left
out of the comparison (`loose`): numbers, answers, progress.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from common.cliutil import run_cli
from tests.support.boots import config_of
from tests.support.docs_pages import programs

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
# In the order of one session on the stack.
PAGES = (
    "docs/quick-start.md",
    "README.md",
    "docs/run-life.md",
    "docs/operations.md",
    "docs/tuning.md",
)
_BLOCK = re.compile(
    r"<!-- made: (here|stack)(?:, from: ([^>]+?))? -->\n```console\n(.*?)```\n", flags=re.DOTALL
)
_MODEL = "models/Qwen3.6-27B"
_WIDTH = "100"


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page: where it is made, and its commands with their outputs."""

    kind: str
    start: str
    pairs: tuple[tuple[str, str], ...]

    def text(self) -> str:
        shown = "".join(f"$ {command}\n{output}" for command, output in self.pairs)
        start = f", from: {self.start}" if self.start else ""
        return f"<!-- made: {self.kind}{start} -->\n```console\n{shown}```\n"

    def cut(self, output: str) -> str:
        """Return an output from where it is to be shown."""
        _, found, rest = f"\n{output}".partition(f"\n{self.start}")
        return f"...\n{self.start}{rest}" if self.start and found else output


def blocks_of(page: str, kind: str) -> list[Block]:
    """Return the blocks of a page that are made in one place."""
    return [block for found in _BLOCK.finditer(page) if (block := _parse(found)).kind == kind]


def _parse(found: re.Match[str]) -> Block:
    pairs: list[tuple[str, str]] = []
    for line in found[3].splitlines(keepends=True):
        if line.startswith("$ "):
            pairs.append((line[2:].rstrip("\n"), ""))
        elif pairs and pairs[-1][0].endswith("\\") and not pairs[-1][1]:
            pairs[-1] = (f"{pairs[-1][0]}\n{line.rstrip()}", "")
        else:
            command, output = pairs[-1]
            pairs[-1] = (command, output + line)
    return Block(found[1], found[2] or "", tuple(pairs))


def with_blocks(page: str, kind: str, run: Callable[[str], str]) -> str:
    """Return a page with the blocks of a kind made anew."""

    def made(found: re.Match[str]) -> str:
        block = _parse(found)
        if block.kind != kind:
            return found[0]
        pairs = tuple((command, block.cut(run(command))) for command, _ in block.pairs)
        return Block(kind, block.start, pairs).text()

    return _BLOCK.sub(made, page)


def unlike(page: str, other: str, kind: str) -> list[str]:
    """Return the commands whose outputs differ in two makings of a page, by more than they may."""
    both = zip(blocks_of(page, kind), blocks_of(other, kind), strict=True)
    pairs = [pair for one, two in both for pair in zip(one.pairs, two.pairs, strict=True)]
    return [
        command
        for (command, old), (_, new) in pairs
        if bool(old) != bool(new) or loose(old) != loose(new)
    ]


def run_here(command: str) -> str:
    """Return what one of our programs prints, run in this process in a folder with a model in it.

    No server is asked: only commands that need none may stand in such a block.
    """
    words = shlex.split(command.replace("\\\n", " "))
    program = programs()[words[0]]
    said = io.StringIO()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GENQ_")}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        model = Path(folder, _MODEL)
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps(config_of("27b")))
        here = {**clean, "COLUMNS": _WIDTH, "XDG_STATE_HOME": folder, "XDG_CONFIG_HOME": folder}
        with (
            mock.patch.dict(os.environ, here, clear=True),
            mock.patch.object(sys, "argv", words),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            contextlib.suppress(SystemExit),
        ):
            run_cli(program)
        return tidy(said.getvalue(), Path(folder))


def tidy(text: str, folder: Path) -> str:
    """Return output without the places, ids, ports and times of this one run."""
    for place in (f"{folder}/", f"{ROOT}/"):
        text = text.replace(place, "")
    text = text.replace(str(folder), ".").replace(socket.gethostname(), "node7")
    text = re.sub(r"node7-(cpu|gpu\d+)", r"node7-\1", text)
    text = re.sub(r"(node7-(?:cpu|gpu\d+))-\d+-[0-9a-f]{4}", r"\1-4711-c0de", text)
    text = re.sub(
        r"127\.0\.0\.1:\d+( \d+)?", lambda m: "127.0.0.1:6379" + ((m[1] and " 4711") or ""), text
    )
    text = re.sub(r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d+)?", r"2026-11-29\g<1>12:00:00", text)
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    shown = "\n".join(_without_steps(lines))
    return f"{shown}\n" if shown else ""


_STEP = re.compile(r"(?:starting the model|generating|storing|finishing): \d+ of \d+ answered")


def _without_steps(lines: list[str]) -> list[str]:
    """Leave of a row of progress lines the first and the last."""
    kept: list[str] = []
    for number, line in enumerate(lines):
        before = number > 0 and _STEP.match(lines[number - 1])
        after = number + 1 < len(lines) and _STEP.match(lines[number + 1])
        if _STEP.match(line) and before and after:
            if kept[-1] != "...":
                kept.append("...")
            continue
        kept.append(line)
    return kept


def loose(text: str) -> str:
    """Return what of an output has to be the same on every machine."""
    text = re.sub(r"(?m)^(> .*)\n  .*$", r"\1\n  ANSWER", text)
    text = re.sub(r"(?m)^(" + _STEP.pattern + r".*|\.\.\.)\n", "", text)
    text = re.sub(r"(?m)^[│┌├└].*\n", "", text)  # a table's rows hold answers
    text = re.sub(r"(?m)^\d+ of (?:them|\d+ answers) are .*\n", "", text)  # there, if any is
    text = re.sub(r"█+", "", text)
    text = re.sub(r"\[[#.]+\]", "[BAR]", text)
    text = re.sub(r"\d[\d,.:]*", "N", text)
    text = re.sub(r"N(?: d| h| min| s|ms)(?: N (?:h|min|s))?", "TIME", text)
    text = re.sub(r"N (?:ok|truncated|looping|empty|thought_only)(?:, N \w+)*", "CLASSES", text)
    text = re.sub(r"N (?:bytes|[kM]?B)\b", "SIZE", text)
    return re.sub(r"[ \t]+", " ", text)
