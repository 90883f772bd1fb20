"""gen-producer: parses command lines and hands them on.

Nothing heavy is imported before a command is known, so that ``--help`` is there at once.
"""

from __future__ import annotations

from typing import Any, NoReturn

import click

from common.cliutil import run_cli, version_option
from producer import cli_steer
from producer.cli_options import (
    console_of,
    examples,
    json_option,
    quiet_option,
    run_argument,
    settings_of,
)

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


@click.group(
    context_settings=_CONTEXT,
    epilog=examples(
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
    epilog=examples(
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
@json_option
@quiet_option
def load(datasets: tuple[str, ...], *, as_json: bool, quiet: bool, **options: Any) -> int:
    """Load data sets as one run; given again, go on or say that all is there.

    DATASET: a file, a folder, a glob, - for stdin, s3://bucket/key, hf://owner/name; JSONL, JSON,
    Parquet, Arrow or CSV, also .gz and .zst. Without one, --run NAME is put back from object
    storage after a loss of Redis.
    """
    from producer.load.command import run_load  # noqa: PLC0415 - see the module

    return run_load(datasets, options, settings_of(), console_of(as_json=as_json, quiet=quiet))


@cli.command(
    epilog=examples(
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
@json_option
def plan(datasets: tuple[str, ...], *, as_json: bool, **options: Any) -> int:
    """Say what a load would find and cost: shapes, lengths, rejects, GPU-hours. Changes nothing.

    Exits 3 if rows cannot be loaded, unless --on-error skip.
    """
    from producer.plan.command import run_plan  # noqa: PLC0415 - see the module

    return run_plan(datasets, options, settings_of(), console_of(as_json=as_json))


@cli.command(
    epilog=examples(
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
@click.option("--price", type=click.FloatRange(0), metavar="P", help="Of a GPU for an hour.")
@json_option
def status(run: str | None, *, watch: float | None, price: float | None, as_json: bool) -> int:
    """Show how a run stands: counts, rate, end, cost, workers, failures. Changes nothing.

    With --watch on a terminal the screen is renewed in place; Ctrl-C ends that (exit code 130).
    """
    from producer.status.command import run_status  # noqa: PLC0415 - see the module

    return run_status(run, watch, settings_of(), console_of(as_json=as_json), price=price)


@cli.command(
    epilog=examples(
        "gen-producer verify prompts",
        "gen-producer verify prompts --allow-failures --json",
    )
)
@run_argument
@click.option("--quick", is_flag=True, help="Trust the parts' indexes; do not read every part.")
@click.option("--allow-failures", is_flag=True, help="Exit 0 although items are dead-lettered.")
@json_option
def verify(run: str, *, quick: bool, allow_failures: bool, as_json: bool) -> int:
    """Prove from object storage alone that a run is complete and every item is there once.

    Exits 9 if that fails, 8 if items are dead-lettered.
    """
    from producer.verify import run_verify  # noqa: PLC0415 - see the module

    console = console_of(as_json=as_json)
    return run_verify(run, settings_of(), console, deep=not quick, allow_failures=allow_failures)


@cli.command(
    epilog=examples(
        "gen-producer export prompts --to specforge train.jsonl",
        "gen-producer export prompts --to messages --include truncated - | head -1",
    )
)
@run_argument
@click.argument("out", metavar="OUT")
@click.option("--to", required=True, type=click.Choice(_EXPORTS), help="The format.")
@click.option("--only", multiple=True, type=click.Choice(_KEPT), help="Verdicts; default: ok.")
@click.option("--include", multiple=True, type=click.Choice(_KEPT), help="Verdicts beside those.")
@click.option("--per-turn", is_flag=True, help="A row for each generated turn (chat formats).")
@click.option("--reasoning/--no-reasoning", default=None, help="Default: not in messages.")
@click.option("--compress", type=click.Choice(["none", "gz", "zst"]), help="For folders and -.")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@json_option
@quiet_option
def export(run: str, out: str, *, as_json: bool, quiet: bool, **options: Any) -> int:
    """Write a run's completions as files for trainers and other tools.

    OUT: a file (also .gz, .zst by its name), a folder (a file for each part; resumed), or - for
    stdout. A file appears when it is whole. speculators holds the engine's own token ids.
    """
    from producer.export.command import run_export  # noqa: PLC0415 - see the module

    return run_export(run, out, settings_of(), console_of(as_json=as_json, quiet=quiet), options)


@cli.command(
    epilog=examples(
        "gen-producer report prompts --price 2.50",
        "gen-producer report prompts --json | jq '.longest, .limit'",
    )
)
@run_argument
@click.option("--out", metavar="FILE.html", help="Default: RUN-report.html; - for stdout.")
@click.option("--price", type=click.FloatRange(0), metavar="P", help="Of a GPU for an hour.")
@click.option("--examples", is_flag=True, help="Show prompts and answers of what went wrong.")
@json_option
def report(run: str, *, out: str | None, price: float | None, examples: bool, as_json: bool) -> int:
    """Write a run's page: lengths against the limit, verdicts, speed, failures, waste, cost.

    Reads storage, and Redis if it is up; changes nothing. --json without --out writes no page.
    """
    from producer.report.command import run_report  # noqa: PLC0415 - see the module

    console = console_of(as_json=as_json)
    return run_report(run, settings_of(), console, out=out, price=price, examples=examples)


@cli.command(
    epilog=examples(
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
@json_option
def exporter(*, port: int | None, interval: float, once: bool, listed: bool, as_json: bool) -> int:
    """Serve queue depths, states of runs and the fleet's figures to Prometheus.

    Reads Redis only, and changes nothing; the user `monitor` is enough. Listens on loopback, or
    on GENQ_METRICS_HOST. --json goes with --once and --list.
    """
    from common.settings import load_settings  # noqa: PLC0415 - pydantic takes 0.2 s to import
    from producer.exporter import run_exporter, show_list  # noqa: PLC0415 - see the module

    console = console_of(as_json=as_json)
    if listed:
        return show_list(console)
    settings = load_settings(metrics_port=port)
    return run_exporter(settings, console, interval_seconds=interval, once=once)


@cli.command(
    epilog=examples("gen-producer doctor", "gen-producer doctor --json | jq '.findings[].what'")
)
@click.option("--model", metavar="M", help="Try this model's tokenizer; default: GENQ_MODEL.")
@json_option
def doctor(*, model: str | None, as_json: bool) -> int:
    """Check settings, Redis, object storage and model; say what to do. Changes nothing.

    Exits with the code of what fails: 2 settings or host, 4 Redis, 5 storage, 6 model; else 0.
    """
    from producer.doctor import doctor as run  # noqa: PLC0415 - see the module

    return run({"model": model}, as_json=as_json)


for steering in cli_steer.COMMANDS:
    cli.add_command(steering)


def main() -> NoReturn:
    """Run the command line."""
    run_cli(cli)
