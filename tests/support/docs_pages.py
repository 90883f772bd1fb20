"""docs/settings.md and docs/cli.md, made from the settings and from the commands themselves."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.testing import CliRunner
from pydantic import SecretStr

from common.secret_files import SUFFIX
from common.settings import OTHER_VARIABLES, Settings, is_secret, kind_of, names_of
from tests.support import docs_words

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 100
SETTINGS_HEAD = """\
# Settings

Every setting of every service. A flag goes before the environment, the environment before
`genq.toml` in the working folder (or the file that `GENQ_CONFIG` names), and that before the
default. In the file a setting has the name of the first column; in the environment it has one of
the names of the second, the first of which wins. A variable that begins with `GENQ_` and is not on
this page is refused, and so is an unknown name in the file. Times are in seconds, sizes in bytes.

A secret may stand in a file instead: put `_FILE` behind the name of its variable. Without keys for
S3 those of `~/.aws/credentials` or of the machine's role are taken.

`genq.toml.example` and `deploy/env.example` hold the same list, to copy from.

Written by `make docs` from `common/settings.py`; a test compares.

"""
CLI_HEAD = """\
# Commands

What each command says with `--help`. Exit codes are in [operations.md](operations.md#exit-codes),
settings that are not flags in [settings.md](settings.md).

Written by `make docs` from the commands themselves; a test compares.

"""


def settings_page() -> str:
    """Return docs/settings.md.

    Raises:
        KeyError: a setting has neither a description nor words, or nobody says who reads it.
    """
    lines = [
        "| setting | variables | default | read by | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in Settings.model_fields:
        variables = "<br>".join(f"`{variable}`" for variable in names_of(name))
        readers = ", ".join(docs_words.READERS[name])
        lines.append(
            f"| `{name}` | {variables} | {_default(name)} | {readers} | {_meaning(name)} |"
        )
    lines += ["", "## Other variables", "", "| variable | meaning |", "| --- | --- |"]
    others = {name: docs_words.VARIABLES[name] for name in sorted(OTHER_VARIABLES)}
    lines += [f"| `{name}` | {words} |" for name, words in others.items()]
    return SETTINGS_HEAD + "\n".join(lines) + "\n"


def _meaning(name: str) -> str:
    field = Settings.model_fields[name]
    words = field.description or docs_words.MEANINGS[name]
    secret = f" A secret, or `{names_of(name)[0]}{SUFFIX}`." if is_secret(name) else ""
    return f"{words}{secret} ({kind_of(name)})".replace("|", "\\|")


def _default(name: str) -> str:
    field = Settings.model_fields[name]
    if field.default_factory is not None:  # differs from user to user
        return "`~/.local/state/genq`"
    default = field.default
    if isinstance(default, SecretStr):  # the built-in one is no secret
        default = default.get_secret_value()
    if default in (None, ""):
        return "-"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def settings_read_in(*folders: str, without: str = "") -> set[str]:
    """Return which settings the code below some folders reads from a `settings` object."""
    found: set[str] = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            if without and path.is_relative_to(ROOT / without):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and "settings" in ast.unparse(node.value):
                    found.add(node.attr)
    return found & set(Settings.model_fields)


def programs() -> dict[str, click.Command]:
    """Return the commands that pyproject.toml installs, by their names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {}
    for name, place in project["scripts"].items():
        module = importlib.import_module(place.partition(":")[0])
        named = (getattr(module, attribute, None) for attribute in ("cli", "command"))
        found[name] = next(one for one in named if isinstance(one, click.Command))
    return found


def commands_of(
    command: click.Command, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and all that are below it, with the words that call each."""
    yield words, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            if not one.hidden:  # `serve` is what gen-consumer does where nothing is named
                yield from commands_of(one, (*words, name))


def cli_page() -> str:
    """Return docs/cli.md."""
    parts = []
    for name, program in programs().items():
        for words, _ in commands_of(program, (name,)):
            level = "##" if len(words) == 1 else "###"
            parts.append(f"{level} {' '.join(words)}\n\n```text\n{_help(program, words)}\n```\n")
    return CLI_HEAD + "\n".join(parts)


def _help(program: click.Command, words: tuple[str, ...]) -> str:
    arguments = [*words[1:], "--help"]
    done = CliRunner().invoke(program, arguments, prog_name=words[0], terminal_width=WIDTH)
    assert done.exit_code == 0, (words, done.output)
    return "\n".join(line.rstrip() for line in done.output.strip().splitlines())
