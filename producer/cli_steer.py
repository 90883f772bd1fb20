"""The commands of gen-producer that steer a run, and those that look at single items of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from producer.cli_options import console_of, examples, json_option, run_argument, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command(
    epilog=examples(
        "gen-producer failed prompts",
        "gen-producer failed prompts --reason too_long --limit 50 --json | jq .failures",
    )
)
@run_argument
@click.option("--reason", metavar="CLASS", help="Only those of this class.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Examples of each class.",
)
@json_option
def failed(run: str, *, reason: str | None, limit: int, as_json: bool) -> int:
    """Show the dead letters of a run by reason: how many, and a few of each with their texts."""
    from producer.steer.dead_letters import run_failed  # noqa: PLC0415 - see the module

    return run_failed(run, settings_of(), console_of(as_json=as_json), reason=reason, limit=limit)


@click.command(
    epilog=examples(
        "gen-producer requeue prompts --reason too_long",
        "gen-producer requeue prompts --id 1234 --id row:17",
        "gen-producer requeue prompts --reason truncated --max-tokens 16384",
    )
)
@run_argument
@click.option("--reason", metavar="CLASS", help="Only those of this class, as `failed` shows it.")
@click.option("--id", "ids", multiple=True, metavar="ITEM", help="Only this one; repeatable.")
@click.option("--max-tokens", type=click.IntRange(1), help="Redo with this limit.")
@click.option("--temperature", type=click.FloatRange(0), help="Redo with this temperature.")
@click.option("--thinking/--no-thinking", default=None, help="Redo with or without.")
@click.option("--as", "child", metavar="NAME", help="Name of the child run; default: RUN-CLASS.")
@click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
@json_option
def requeue(run: str, *, ids: tuple[str, ...], dry_run: bool, as_json: bool, **options: Any) -> int:
    """Queue dead letters again; or, with other settings, redo committed items of a class.

    ITEM is an item's number, RUN-NUMBER, or row:N. With --max-tokens, --temperature, --thinking or
    --as, the committed items of --reason CLASS are done again as a child run. What RUN holds stays;
    export, report and training take a child's completion where it is ok.
    """
    console = console_of(as_json=as_json)
    if all(value is None for name, value in options.items() if name != "reason"):
        from producer.steer.dead_letters import run_requeue  # noqa: PLC0415 - see the module

        return run_requeue(
            run, settings_of(), console, reason=options["reason"], ids=ids, dry_run=dry_run
        )
    if ids:
        raise click.UsageError("--id queues dead letters again as they are: give no other setting.")
    from producer.steer.redo_command import run_redo  # noqa: PLC0415 - see the module

    return run_redo(run, settings_of(), console, options, dry_run=dry_run)


@click.command(
    epilog=examples(
        "gen-producer trace prompts 1234",
        "gen-producer trace prompts id:my-custom-id --json | jq .life",
    )
)
@run_argument
@click.argument("name", metavar="ID")
@click.option("--texts", is_flag=True, help="With the prompt and the answer.")
@json_option
def trace(run: str, name: str, *, texts: bool, as_json: bool) -> int:
    """Tell the life of one item: where it is, its tries, its completion. Changes nothing.

    ID: an item's number, RUN-NUMBER as RQ shows it, row:N for the N-th row, or what the data set
    calls the row (all prompts are looked through; put id: before it if it looks like another).
    Several matches are listed. Redis may be gone: storage tells the rest.
    """
    from producer.trace.command import run_trace  # noqa: PLC0415 - see the module

    return run_trace(run, name, settings_of(), console_of(as_json=as_json), texts=texts)


@click.command(
    context_settings={"ignore_unknown_options": True},  # a negative number is no option
    epilog=examples("gen-producer priority prompts 10", "gen-producer priority prompts -5 --json"),
)
@run_argument
@click.argument("priority", metavar="N", type=click.IntRange(-(2**31), 2**31))
@json_option
def priority(run: str, priority: int, *, as_json: bool) -> int:
    """Set which of several runs is served first: the one of the higher N, then the older.

    Consumers obey within seconds; what is leased goes on. A run begins with that of `load`, also
    when it is loaded again after a loss of Redis.
    """
    from producer.steer.priority import run_priority  # noqa: PLC0415 - see the module

    return run_priority(run, priority, settings_of(), console_of(as_json=as_json))


@click.command(epilog=examples("gen-producer pause prompts", "gen-producer pause prompts --json"))
@run_argument
@json_option
def pause(run: str, *, as_json: bool) -> int:
    """Hand out no more items of a run; what is being generated is finished."""
    return _control("pause", run, as_json=as_json)


@click.command(
    epilog=examples("gen-producer resume prompts", "gen-producer resume prompts --accept")
)
@run_argument
@click.option("--accept", is_flag=True, help="Go on although the first rows went wrong.")
@json_option
def resume(run: str, *, accept: bool, as_json: bool) -> int:
    """Hand out items of a paused run again.

    A run that was held by itself goes on with --accept, and is not held for that reason again.
    """
    return _control("resume", run, as_json=as_json, accept=accept)


@click.command(
    epilog=examples("gen-producer cancel prompts --dry-run", "gen-producer cancel prompts --yes")
)
@run_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be dropped.")
@json_option
def cancel(run: str, *, yes: bool, dry_run: bool, as_json: bool) -> int:
    """End a run; what is committed stays, what is queued is dropped."""
    return _control("cancel", run, as_json=as_json, yes=yes, dry_run=dry_run)


def _control(verb: str, run: str, *, as_json: bool, **options: Any) -> int:
    from producer.steer import control  # noqa: PLC0415 - see the module

    command: Callable[..., int] = getattr(control, f"run_{verb}")
    return command(run, settings_of(), console_of(as_json=as_json), **options)


COMMANDS = (failed, requeue, trace, priority, pause, resume, cancel)
