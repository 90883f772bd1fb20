"""gen-sink: parse, set up, run."""

from __future__ import annotations

import click

from common.cliutil import Bytes, DefaultGroup, run_cli, version_option

_CONTEXT = {"help_option_names": ["-h", "--help"]}
_EPILOG = """\b
Examples:
  gen-sink                                 serve all runs, until stopped
  gen-sink --run prompts --burst           end when the run is finished
  gen-sink --format jsonl.zst --rows 2000
  gen-sink doctor                          check Redis, storage and settings, change nothing

It may be killed at any moment, and any number of sinks may run. GENQ_REDIS_URL and GENQ_STORE say
where; SIGTERM commits what is in hand and ends, a second one ends at once."""


@click.group(cls=DefaultGroup, context_settings=_CONTEXT)
def cli() -> None:
    """Write results from Redis to object storage."""


@click.command(epilog=_EPILOG, context_settings=_CONTEXT)
@click.option("--run", metavar="NAME", help="Serve this run only.")
@click.option("--rows", type=click.IntRange(1), help="Seal a part at so many completions (500),")
@click.option("--bytes", "size", type=Bytes(), help="or at so many bytes (64MiB),")
@click.option("--seconds", type=click.FloatRange(0.1), help="or after so long (60).")
@click.option(
    "--format", "suffix", type=click.Choice(["parquet", "jsonl.zst"]), help="Default: parquet."
)
@click.option("--burst", is_flag=True, help="End when the runs are finished.")
@click.option(
    "--single-writer",
    is_flag=True,
    help="For a store without conditional writes: keep other sinks out by a lease.",
)
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Prometheus, on loopback.")
@version_option()
def serve(
    *,
    run: str | None,
    rows: int | None,
    size: int | None,
    seconds: float | None,
    suffix: str | None,
    burst: bool,
    single_writer: bool,
    metrics_port: int | None,
) -> int:
    """Write results from Redis to object storage, each item once.

    Ends with 0 after --burst, or with 8 if items are dead-lettered; 4 and 5 name trouble with
    Redis and with the store at the start. Later outages are waited for, and so is, with --burst, a
    run that is held or paused; the log names the way out.

    After --burst 4 also says that Redis lost a run before its end, which is told once the others
    are finished, or that it holds none while runs of the store are unfinished. With --run that one
    is waited for.
    """
    import asyncio  # noqa: PLC0415 - keeps --help fast

    from common.ids import run_name  # noqa: PLC0415 - the same
    from common.settings import load_settings  # noqa: PLC0415 - the same
    from common.telemetry.logs import setup_logging  # noqa: PLC0415 - the same
    from consumer.sink.start import run_sink  # noqa: PLC0415 - the same

    settings = load_settings(
        sink_rows=rows,
        sink_bytes=size,
        sink_seconds=seconds,
        sink_format=suffix,
        metrics_port=metrics_port,
    )
    setup_logging(level=settings.log_level, form=settings.log_format)
    only = run_name(run) if run else None
    return asyncio.run(
        run_sink(settings, only=only, burst=burst, single_writer=single_writer, say=click.echo)
    )


@cli.command(
    context_settings=_CONTEXT,
    epilog="""\b
Examples:
  gen-sink doctor
  gen-sink doctor --json | jq .exit_code""",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def doctor(*, as_json: bool) -> int:
    """Check settings, Redis and object storage; say what to do. Changes nothing that stays.

    Exits with the code of what fails: 2 settings or host, 4 Redis, 5 storage; else 0.
    """
    from common.doctor.command import run_doctor  # noqa: PLC0415 - keeps --help fast
    from consumer.sink.doctor import SINK  # noqa: PLC0415 - the same

    return run_doctor(SINK, {}, as_json=as_json)


cli.default = serve


def main() -> None:
    """Run gen-sink."""
    run_cli(cli)
