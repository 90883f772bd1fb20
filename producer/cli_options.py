"""What the commands of gen-producer share: options, examples, and how settings and words come in.

Nothing heavy is imported before a command runs, so that ``--help`` is there at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from common.settings import Settings
    from producer.console import Console

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors.")
run_argument = click.argument("run", metavar="RUN")


def examples(*lines: str) -> str:
    """Return an epilog that click does not rewrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def settings_of() -> Settings:
    """Return the settings of this command line and its environment; raises UsageError."""
    from common.settings import load_settings  # noqa: PLC0415 - pydantic takes 0.2 s to import

    return load_settings()


def console_of(*, as_json: bool, quiet: bool = False) -> Console:
    """Return where a command speaks."""
    from producer.console import Console  # noqa: PLC0415 - see the module

    return Console(json=as_json, quiet=quiet)
