"""gen-producer: parses command lines and hands them on.

Nothing heavy is imported before a command is known, so that ``--help`` is there at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import click

from common.cliutil import run_cli, version_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.settings import Settings
    from producer.console import Console

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_SHAPES = ("batch", "messages", "conversations", "turns", "prompt", "text")
_EXPORTS = ("specforge", "speculators", "messages", "openai-batch")
_KEPT = ("ok", "truncated", "empty", "thought_only", "looping")
_CONTEXT_HELP = "Most tokens; default: the model's."
_MORE = click.FloatRange(0, min_open=True)
_SHARE = click.FloatRange(0, 1)
_on_error = click.option(
    "--on-error", type=click.Choice(["stop", "skip"]), default="stop", show_default=True
)
_split = click.option("--split", metavar="NAME", help="Of a folder or of a set of the hub.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
_quiet = click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors.")
_run = click.argument("run", metavar="RUN")


def _examples(*lines: str) -> str:
    """Return an epilog that click does not rewrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(
    context_settings=_CONTEXT,
    epilog=_examples(
        "gen-producer load prompts.jsonl --model Qwen/Qwen3.6-27B --max-tokens 4096",
        "gen-producer status --watch",
    ),
)
@version_option()
def cli() -> None:
    """Load data sets, and see how their runs stand.

    Redis is named by GENQ_REDIS_URL, object storage by GENQ_STORE (s3://bucket/prefix).
    """


@cli.command(
    epilog=_examples(
        "gen-producer load prompts.jsonl --model Qwen/Qwen3.6-27B --max-tokens 4096",
        "zcat a.jsonl.gz | gen-producer load - --run a --samples 4 --temperature 0.8",
    )
)
@click.argument("datasets", metavar="[DATASET]...", nargs=-1)
@click.option("--run", metavar="NAME", help="The run; default: the file's name.")
@click.option("--model", metavar="M", help="Model that answers; default: GENQ_MODEL.")
@click.option("--samples", type=click.IntRange(1, 1000), help="Completions of each row.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest completion.")
@click.option("--temperature", type=click.FloatRange(0), help="Sampling temperature.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True))
@click.option("--top-k", type=click.IntRange(-1))
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed of the run's seeds.")
@click.option("--thinking/--no-thinking", default=None, help="Default: as the template does.")
@click.option("--max-attempts", type=click.IntRange(1, 100), help="Tries an item has.")
@click.option("--policy", multiple=True, metavar="CLASS=P", help="keep, retry or dead; repeatable.")
@click.option("--retry-max-tokens", type=click.IntRange(1), help="Longest completion of a retry.")
@click.option("--keep-answers", is_flag=True, default=None, help="Only tokenize the rows' answers.")
@click.option("--reproducible", is_flag=True, default=None, help="Equal seeds, equal tokens; slow.")
@click.option("--canary-rows", type=click.IntRange(0), help="First rows watched: 200; 0: none.")
@click.option("--canary-faults", type=_SHARE, help="Share of bad ones that holds the run: 0.1.")
@click.option("--canary-truncated", type=_SHARE, help="Share cut off that holds it: 0.5.")
@click.option("--priority", type=int, default=0, help="Runs of a higher one are served first.")
@click.option("--format", "shape", type=click.Choice(_SHAPES), help="Shape of rows; else seen.")
@click.option("--field", "text_field", metavar="KEY", help="The key that holds the prompt's text.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Take the first N rows only.")
@click.option("--context", type=click.IntRange(2), metavar="N", help=_CONTEXT_HELP)
@_split
@_on_error
@click.option("--dry-run", is_flag=True, help="Read and compare; store and queue nothing.")
@_json
@_quiet
def load(datasets: tuple[str, ...], *, as_json: bool, quiet: bool, **options: Any) -> int:
    """Load data sets as one run; given again, go on or say that all is there.

    DATASET: a file, a folder, a glob, - for stdin, s3://bucket/key, hf://owner/name; JSONL, JSON,
    Parquet, Arrow or CSV, also .gz and .zst. Without one, --run NAME is put back from object
    storage after a loss of Redis.
    """
    from producer.load_command import run_load  # noqa: PLC0415 - see the module

    return run_load(datasets, options, _settings(), _console(as_json=as_json, quiet=quiet))


@cli.command(
    epilog=_examples(
        "gen-producer plan prompts.jsonl --model /models/Qwen3.6-27B --context 32768",
        "gen-producer plan a.parquet --like RUN --tokens-per-second 3500 --gpus 7",
    )
)
@click.argument("datasets", metavar="DATASET...", nargs=-1)
@click.option("--model", metavar="M", help="Model that will answer; default: GENQ_MODEL.")
@click.option("--context", type=click.IntRange(2), metavar="N", help=_CONTEXT_HELP)
@click.option("--samples", type=click.IntRange(1, 1000), help="Completions of each row.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest completion.")
@click.option("--thinking/--no-thinking", default=None, help="Default: as the template does.")
@click.option("--tokens-per-second", type=_MORE, metavar="T", help="Generated, of one GPU.")
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True)
@click.option("--price", type=click.FloatRange(0), metavar="P", help="Of a GPU for an hour.")
@click.option("--expect-tokens", type=_MORE, metavar="N", help="Mean length of an answer.")
@click.option("--like", metavar="RUN", help="Expect answers as long as this finished run's.")
@click.option("--format", "shape", type=click.Choice(_SHAPES), help="Shape of rows; else seen.")
@click.option("--field", "text_field", metavar="KEY", help="The key that holds the prompt's text.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Take the first N rows only.")
@_split
@_on_error
@_json
def plan(datasets: tuple[str, ...], *, as_json: bool, **options: Any) -> int:
    """Say what a load would find and cost: shapes, lengths, rejects, GPU-hours. Changes nothing.

    Exits 3 if rows cannot be loaded, unless --on-error skip.
    """
    from producer.plan_command import run_plan  # noqa: PLC0415 - see the module

    return run_plan(datasets, options, _settings(), _console(as_json=as_json))


@cli.command(
    epilog=_examples(
        "gen-producer status prompts --watch 5",
        "gen-producer status prompts --json | jq .counts",
    )
)
@click.argument("run", metavar="[RUN]", required=False)
@click.option(
    "--watch",
    "-w",
    is_flag=False,
    flag_value=2.0,
    type=click.FloatRange(0.2),
    metavar="[S]",
    help="Again every S seconds (2), until the run is done.",
)
@_json
def status(run: str | None, *, watch: float | None, as_json: bool) -> int:
    """Show how a run stands: counts, rate, end, workers, failures. Changes nothing."""
    from producer.status import run_status  # noqa: PLC0415 - see the module

    return run_status(run, watch, _settings(), _console(as_json=as_json))


@cli.command(
    epilog=_examples(
        "gen-producer verify prompts",
        "gen-producer verify prompts --allow-failures --json",
    )
)
@_run
@click.option("--quick", is_flag=True, help="Trust the parts' indexes; do not read every part.")
@click.option("--allow-failures", is_flag=True, help="Exit 0 although items are dead-lettered.")
@_json
def verify(run: str, *, quick: bool, allow_failures: bool, as_json: bool) -> int:
    """Prove from object storage alone that a run is complete and every item is there once.

    Exits 9 if that fails, 8 if items are dead-lettered.
    """
    from producer.verify import run_verify  # noqa: PLC0415 - see the module

    console = _console(as_json=as_json)
    return run_verify(run, _settings(), console, deep=not quick, allow_failures=allow_failures)


@cli.command(
    epilog=_examples(
        "gen-producer export prompts --to specforge train.jsonl",
        "gen-producer export prompts --to messages --include truncated - | head -1",
    )
)
@_run
@click.argument("out", metavar="OUT")
@click.option("--to", required=True, type=click.Choice(_EXPORTS), help="The format.")
@click.option("--only", multiple=True, type=click.Choice(_KEPT), help="Verdicts; default: ok.")
@click.option("--include", multiple=True, type=click.Choice(_KEPT), help="Verdicts beside those.")
@click.option("--per-turn", is_flag=True, help="A row for each generated turn (chat formats).")
@click.option("--reasoning/--no-reasoning", default=None, help="Default: not in messages.")
@click.option("--compress", type=click.Choice(["none", "gz", "zst"]), help="For folders and -.")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@_json
@_quiet
def export(run: str, out: str, *, as_json: bool, quiet: bool, **options: Any) -> int:
    """Write a run's completions as files for trainers and other tools.

    OUT: a file (also .gz, .zst by its name), a folder (a file for each part; resumed), or - for
    stdout. A file appears when it is whole. speculators holds the engine's own token ids.
    """
    from producer.export.command import run_export  # noqa: PLC0415 - see the module

    return run_export(run, out, _settings(), _console(as_json=as_json, quiet=quiet), options)


@cli.command(
    epilog=_examples(
        "gen-producer report prompts --price 2.50",
        "gen-producer report prompts --json | jq '.longest, .limit'",
    )
)
@_run
@click.option("--out", metavar="FILE.html", help="Default: RUN-report.html; - for stdout.")
@click.option("--price", type=click.FloatRange(0), metavar="P", help="Of a GPU for an hour.")
@click.option("--examples", is_flag=True, help="Show prompts and answers of what went wrong.")
@_json
def report(run: str, *, out: str | None, price: float | None, examples: bool, as_json: bool) -> int:
    """Write a run's page: lengths against the limit, verdicts, speed, failures, waste, cost.

    Reads storage, and Redis if it is up; changes nothing. --json without --out writes no page.
    """
    from producer.report.command import run_report  # noqa: PLC0415 - see the module

    console = _console(as_json=as_json)
    return run_report(run, _settings(), console, out=out, price=price, examples=examples)


@cli.command(
    epilog=_examples(
        "gen-producer failed prompts --limit 5",
        "gen-producer failed prompts --json | jq .failures",
    )
)
@_run
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N")
@_json
def failed(run: str, *, limit: int, as_json: bool) -> int:
    """Show the dead letters of a run, with class and text."""
    from producer.dead_letters import run_failed  # noqa: PLC0415 - see the module

    return run_failed(run, _settings(), _console(as_json=as_json), limit=limit)


@cli.command(
    epilog=_examples(
        "gen-producer requeue prompts --reason too_long",
        "gen-producer requeue prompts --reason truncated --max-tokens 16384",
    )
)
@_run
@click.option("--reason", metavar="CLASS", help="Only those of this class, as `failed` shows it.")
@click.option("--max-tokens", type=click.IntRange(1), help="Redo with this limit.")
@click.option("--temperature", type=click.FloatRange(0), help="Redo with this temperature.")
@click.option("--thinking/--no-thinking", default=None, help="Redo with or without.")
@click.option("--as", "child", metavar="NAME", help="Name of the child run; default: RUN-CLASS.")
@click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
@_json
def requeue(run: str, *, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Queue dead letters again; or, with other settings, redo committed items of a class.

    With --max-tokens, --temperature, --thinking or --as, the committed items of --reason CLASS
    are done again as a child run. What RUN holds stays; export, report and training take a
    child's completion where it is ok.
    """
    console = _console(as_json=as_json)
    if all(value is None for name, value in options.items() if name != "reason"):
        from producer.dead_letters import run_requeue  # noqa: PLC0415 - see the module

        return run_requeue(run, _settings(), console, reason=options["reason"], dry_run=dry_run)
    from producer.redo_command import run_redo  # noqa: PLC0415 - see the module

    return run_redo(run, _settings(), console, options, dry_run=dry_run)


@cli.command(epilog=_examples("gen-producer pause prompts", "gen-producer pause prompts --json"))
@_run
@_json
def pause(run: str, *, as_json: bool) -> int:
    """Hand out no more items of a run; what is being generated is finished."""
    return _control("pause", run, as_json=as_json)


@cli.command(
    epilog=_examples("gen-producer resume prompts", "gen-producer resume prompts --accept")
)
@_run
@click.option("--accept", is_flag=True, help="Go on although the first rows went wrong.")
@_json
def resume(run: str, *, accept: bool, as_json: bool) -> int:
    """Hand out items of a paused run again.

    A run that was held by itself goes on with --accept, and is not held for that reason again.
    """
    return _control("resume", run, as_json=as_json, accept=accept)


@cli.command(
    epilog=_examples("gen-producer cancel prompts --dry-run", "gen-producer cancel prompts --yes")
)
@_run
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be dropped.")
@_json
def cancel(run: str, *, yes: bool, dry_run: bool, as_json: bool) -> int:
    """End a run; what is committed stays, what is queued is dropped."""
    return _control("cancel", run, as_json=as_json, yes=yes, dry_run=dry_run)


@cli.command(
    epilog=_examples(
        "gen-producer exporter --port 9817 --interval 10",
        "gen-producer exporter --list --json | jq '.metrics[].name'",
    )
)
@click.option("--port", type=click.IntRange(1, 65535), help="Where to listen; default: 9817.")
@click.option(
    "--interval",
    type=click.FloatRange(0.5),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Look at Redis every S seconds.",
)
@click.option("--once", is_flag=True, help="Print the page once, and end.")
@click.option("--list", "listed", is_flag=True, help="Print what metrics there are, and end.")
@_json
def exporter(*, port: int | None, interval: float, once: bool, listed: bool, as_json: bool) -> int:
    """Serve queue depths, states of runs and the fleet's figures to Prometheus.

    Reads Redis only, and changes nothing; the user `monitor` is enough. Listens on loopback, or
    on GENQ_METRICS_HOST. --json goes with --once and --list.
    """
    from common.settings import load_settings  # noqa: PLC0415 - pydantic takes 0.2 s to import
    from producer.exporter import run_exporter, show_list  # noqa: PLC0415 - see the module

    console = _console(as_json=as_json)
    if listed:
        return show_list(console)
    settings = load_settings(metrics_port=port)
    return run_exporter(settings, console, interval_seconds=interval, once=once)


def _control(verb: str, run: str, *, as_json: bool, **options: Any) -> int:
    from producer import control  # noqa: PLC0415 - see the module

    command: Callable[..., int] = getattr(control, f"run_{verb}")
    return command(run, _settings(), _console(as_json=as_json), **options)


def _settings() -> Settings:
    from common.settings import load_settings  # noqa: PLC0415 - pydantic takes 0.2 s to import

    return load_settings()


def _console(*, as_json: bool, quiet: bool = False) -> Console:
    from producer.console import Console  # noqa: PLC0415 - see the module

    return Console(json=as_json, quiet=quiet)


def main() -> NoReturn:
    """Run the command line."""
    run_cli(cli)
