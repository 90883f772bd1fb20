"""``gen-consumer``: keeps one engine full. Parses and prints; imports the rest when it runs."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import click

from common.cliutil import run_cli, version_option
from common.errors import EngineError

if TYPE_CHECKING:
    from common.settings import Settings

EPILOG = """
\b
Examples:
  gen-consumer --gpu 0 --model Qwen/Qwen3.6-27B
  gen-consumer --engine llamacpp --model smollm2 --run my-run --burst
"""


@click.command(
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--gpu", type=click.IntRange(min=0), help="The GPU to serve, counted by the host.")
@click.option("--model", help="Model: a folder, a .gguf file or a name.  [GENQ_MODEL]")
@click.option("--run", "runs", multiple=True, help="Only this run; may be repeated.")
@click.option(
    "--engine", type=click.Choice(["sglang", "llamacpp"]), help="What generates.  [GENQ_ENGINE]"
)
@click.option("--url", help="Attach to a running engine; nothing is launched.")
@click.option("--burst", is_flag=True, help="End when nothing is left to lease.")
@click.option("--max-running", type=click.IntRange(min=1), help="Requests at once in the engine.")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of prompt and answer together.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Prometheus, on loopback.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE FLAGS]")
@version_option()
def command(**given: Any) -> int:
    """Keep one GPU's engine full with leased prompts until stopped.

    Serves every run of the engine's model, best priority first. SIGTERM or Ctrl-C drains: what
    runs may finish, the rest is given back uncharged; the same again stops now.
    """
    import asyncio  # noqa: PLC0415 - --help starts fast

    from common.ids import run_name  # noqa: PLC0415
    from common.settings import load_settings  # noqa: PLC0415
    from common.telemetry.logs import setup_logging  # noqa: PLC0415
    from consumer.start import Options, serve  # noqa: PLC0415

    settings = load_settings(
        **{name: given[name] for name in ("model", "engine", "metrics_port", "log_level")}
    )
    setup_logging(level=settings.log_level, form=settings.log_format)
    if not given["url"]:
        _refuse_gguf_without_sglang(settings)
    options = Options(
        gpu=given["gpu"],
        url=given["url"],
        runs=tuple(run_name(name) for name in given["runs"]),
        burst=given["burst"],
        max_running=given["max_running"],
        context=given["context"],
        flags=given["flags"],
    )
    return int(asyncio.run(serve(settings, options)))


def _refuse_gguf_without_sglang(settings: Settings) -> None:
    """Name the other engine to those who start a model of it, and have no SGLang.

    Raises:
        EngineError: that is so.
    """
    from common.model import SMALL_MODEL  # noqa: PLC0415 - --help starts fast

    small = settings.model == SMALL_MODEL or settings.model.endswith(".gguf")
    if settings.engine == "sglang" and small and importlib.util.find_spec("sglang") is None:
        raise EngineError(
            "SGLang is not installed in this Python.",
            why=f"It is the default engine; {settings.model} is a model for llama.cpp.",
            fix=f"gen-consumer --engine llamacpp --model {settings.model}",
        )


def main() -> None:
    """Run as a program."""
    run_cli(command)
