"""What every command shares: how it ends, and how an error looks.

Commands return an exit code or raise a GenqError; here, and only here, errors become three lines
on stderr (what, why, what to do) or, with ``--json``, one JSON object there.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from common.errors import Exit, GenqError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

DEBUG_VARIABLE = "GENQ_DEBUG"
_FULL = (errno.ENOSPC, errno.EDQUOT)
REPORT = "This is a bug in genq. Please report it with the lines above."


def run_cli(command: click.Command) -> NoReturn:
    """Run a click command as a program: every way out has a documented exit code."""
    try:
        code = _main(command)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(Exit.USAGE)
    except click.ClickException as error:
        _plain(error).show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _say("Interrupted. Nothing is lost; the same command goes on.")
        sys.exit(Exit.INTERRUPTED)
    except GenqError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in _FULL:
            _report_bug()
        _forget_stdout()
        show_error(_no_room(error))
        sys.exit(Exit.USAGE)
    except Exception:  # noqa: BLE001 - the last place: a bug of ours is shown, and said to be one
        _report_bug()
    sys.exit(code if isinstance(code, int) else Exit.DONE)


def _plain(error: click.ClickException) -> click.ClickException:
    """Return the error without click's own names of the kinds of numbers."""
    if type(error) is not click.BadParameter:
        return error
    message = error.message
    for kind, plain in (("integer range", "whole number"), ("float range", "number")):
        message = message.replace(f"is not a valid {kind}.", f"is not a {plain}.")
    return click.BadParameter(message, error.ctx, error.param, error.param_hint)


def _main(command: click.Command) -> object:
    """Run a command; where nobody reads what it writes, as after ``| head``, it is done."""
    stdout = sys.stdout
    try:
        return command.main(standalone_mode=False)
    except BrokenPipeError:
        pass
    except SystemExit:
        if sys.stdout is stdout:  # click puts a wrapper there, and exits with 1
            raise
    _forget_stdout()
    return Exit.DONE


def _report_bug() -> NoReturn:
    traceback.print_exc()
    _say(REPORT)
    sys.exit(Exit.BUG)


def _no_room(error: OSError) -> GenqError:
    place = error.filename or "standard output, or a temporary file"
    other = "" if error.filename else " (> FILE; TMPDIR for temporary files)"
    return UsageError(
        f"There is no room left at {place}.",
        why=str(error),
        fix=f"Make room there, or name another place{other}.",
    )


def show_error(error: GenqError) -> None:
    """Print an error on stderr, as JSON if ``--json`` was given."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    if "--json" in sys.argv:
        from common.codec import dumps  # noqa: PLC0415 - keeps zstd out of --help

        body = {
            "error": type(error).__name__,
            "exit_code": int(error.exit_code),
            "what": error.what,
            "why": error.why,
            "fix": error.fix,
        }
        _say(dumps(body).decode())
        return
    _say(f"Error: {error.what}")
    for part in (error.why, error.fix):
        if part:
            _say("  " + part.replace("\n", "\n  "))


def _say(line: str) -> None:
    with suppress(OSError):  # where it cannot be said, the exit code still says it
        click.echo(line, err=True)


def _forget_stdout() -> None:
    # The interpreter would flush stdout once more at exit, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse_bytes(text: str) -> int:
    """Return a size such as ``64MiB``, ``1.5GB`` or ``1000`` in bytes.

    Raises:
        click.BadParameter: it is not a size.
    """
    units = {"": 1, "B": 1}
    for power, letter in enumerate("KMGT", start=1):
        units[f"{letter}B"] = 1000**power
        units[f"{letter}IB"] = units[letter] = 1024**power
    number = text.strip().rstrip("BbIiKkMmGgTt").strip()
    unit = text.strip()[len(number) :].strip().upper()
    try:
        return int(float(number) * units[unit])
    except (KeyError, ValueError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is not a size; for example 64MiB") from error


class Bytes(click.ParamType[int]):
    """A size on the command line."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See click: return the size in bytes."""
        del param, ctx
        return value if isinstance(value, int) else parse_bytes(value)


class DefaultGroup(click.Group):
    """A group with a command that runs where none is named, as in ``gen-consumer --gpu 3``.

    ``default`` is that command; whoever makes the group sets it.
    """

    default: click.Command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """See click: take the named command, or else the default one."""
        if args and args[0] in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        return self.default.make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """See click: run what the context was made for."""
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


def version_option() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the ``--version`` flag, which reads the version only when asked."""

    def show(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's shape
        if not value:
            return
        click.echo(f"genq {genq_version()}")
        ctx.exit()

    return click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show the version.",
    )


def genq_version() -> str:
    """Return the installed version of genq."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow to import

    try:
        return version("genq")
    except PackageNotFoundError:
        return "0+unknown"
