"""``gen-local``: the whole pipeline on this machine, with real parts and a small real model."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from common.cliutil import run_cli, version_option
from common.errors import InputError, UsageError
from common.ids import run_name, suggest_run_name
from common.nearest import nearest
from deploy import STATE_FOLDER

if TYPE_CHECKING:
    from common.ids import RunName

_EXAMPLES = """\b
Examples:
  gen-local prompts.jsonl                     answer a data set with the small model
  gen-local prompts.jsonl --limit 20          only its first 20 rows
  gen-local --run prompts --serve             bring its servers up again, to look around
"""


@click.command(
    epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("dataset", required=False)
@click.option("--run", "run", metavar="NAME", help="The run's name [default: the data set's].")
@click.option("--dir", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="The stack's folder [default: .genq/NAME].")  # fmt: skip
@click.option("--model", metavar="M", help="smollm2, or a .gguf file [default: smollm2].")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True,
              help="Longest answer, where a row does not say.")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0), default=0.2, show_default=True,
              help="Low: a small model keeps to the point.")  # fmt: skip
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Answers to each row.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Take the first N rows only.")
@click.option("--on-error", type=click.Choice(["stop", "skip"]), default="stop", show_default=True,
              help="At a row that cannot be used.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["parquet", "jsonl.zst"]), default="parquet",
              show_default=True, help="Format of the results.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave Redis and the S3 server running at the end.")
@click.option("--serve", "serve_only", is_flag=True, help="Only run the servers, until Ctrl-C.")
@click.option("--stop", is_flag=True, help="End the servers that --keep left running.")
@version_option()
def cli(
    *,
    dataset: str | None,
    run: str | None,
    folder: Path | None,
    serve_only: bool,
    stop: bool,
    **options: Any,
) -> int:
    """Answer a data set on this machine: real Redis, real S3 server, real small model.

    Interrupted or killed, it goes on when started again with the same command. Everything lives
    in one folder; delete that folder and it is gone.
    """
    from deploy.pipeline import Job, end_servers, run_job, serve  # noqa: PLC0415 - slow to import

    flag = " --stop" if stop else " --serve" if serve_only else ""
    if flag:
        place = folder or STATE_FOLDER / _run_of(dataset, run, flag)
        _refuse_unknown(place, flag)
        return end_servers(place) if stop else serve(place)
    name = _run_of(dataset, run, flag)
    place = folder or STATE_FOLDER / name
    if dataset is None:
        _refuse_unknown(place, flag)
    else:
        _refuse_missing(dataset)
    return run_job(Job(run=name, folder=place, dataset=dataset, again=_again(), **options))


def _run_of(dataset: str | None, run: str | None, flag: str) -> RunName:
    """Return the run's name: given, or the data set's, or that of the only stack there is."""
    if run:
        return run_name(run)
    if dataset:
        return suggest_run_name("stdin" if dataset == "-" else Path(dataset).name.partition(".")[0])
    stacks = _stacks()
    if len(stacks) == 1:
        return run_name(stacks[0])
    raise UsageError(
        "Which run is meant?" if stacks else "There is nothing to work on.",
        why=f"No DATASET is given, and {STATE_FOLDER} holds {', '.join(stacks) or 'no run'}.",
        fix=f"gen-local --run NAME{flag}" if stacks else "gen-local prompts.jsonl",
    )


def _stacks() -> list[str]:
    return sorted(path.parent.name for path in STATE_FOLDER.glob("*/stack.json"))


def _refuse_unknown(place: Path, flag: str) -> None:
    """Refuse a stack that was never started: an empty one would look like a lost one.

    Raises:
        UsageError: it was not.
    """
    if (place / "stack.json").exists():
        return
    stacks = _stacks()
    meant = nearest(place.name, stacks) if place.parent == STATE_FOLDER else None
    raise UsageError(
        f"There is no stack in {place}" + (f": did you mean {meant}?" if meant else "."),
        why=f"{STATE_FOLDER} holds {', '.join(stacks) or 'no run'}.",
        fix=f"gen-local --run {meant or 'NAME'}{flag}" if stacks else "gen-local prompts.jsonl",
    )


def _refuse_missing(dataset: str) -> None:
    """Refuse a file that is not there before anything is started.

    What lies elsewhere (``s3://``, ``hf://``) is looked for when it is read.

    Raises:
        InputError: it is not there, or a glob matches nothing.
    """
    from producer.sources.url import STDIN, sources_of  # noqa: PLC0415 - --help starts fast

    if dataset.startswith("s3://"):
        return
    for source in sources_of((dataset,), _no_bucket):
        local = source.open is not None and source.name != STDIN
        if local and not Path(source.name).exists():
            raise InputError(
                f"{dataset} is not there.",
                why=f"It was looked for in {Path.cwd()}.",
                fix="Name a file, a 'glob*.jsonl' in quotes, - (stdin), s3://... or hf://...",
            )


def _no_bucket(_name: str) -> NoReturn:
    raise AssertionError


def _again() -> str:
    """Return the command line that this process was started with, for a shell."""
    program = Path(sys.argv[0])
    here = Path.cwd()
    name = program.relative_to(here) if program.is_relative_to(here) else program
    on_path = shutil.which(program.name) == str(program)
    return shlex.join([program.name if on_path else str(name), *sys.argv[1:]])


def main() -> NoReturn:
    """Run the command."""
    run_cli(cli)


if __name__ == "__main__":
    main()
