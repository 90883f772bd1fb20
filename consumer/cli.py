"""``gen-consumer``: keeps one engine full. Parses and prints; imports the rest when it runs."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import click

from common.cliutil import Bytes, DefaultGroup, run_cli, version_option
from common.errors import EngineError, UsageError
from common.nearest import did_you_mean
from consumer.tuning.cli import check_command, tune_command

if TYPE_CHECKING:
    from common.settings import Settings

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_DEFAULT = "serve"
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def _engine_flags(
    _ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse a word that can be no engine's flag: most likely a command that was misspelled."""
    if given and not given[0].startswith("-"):
        raise UsageError(
            f"There is no command {given[0]}{did_you_mean(given[0], command.commands)}",
            why="Behind the options only flags of the engine may stand, after a --.",
            fix="gen-consumer --help",
        )
    return given


_flags = click.argument(
    "flags",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[-- ENGINE FLAGS]",
    callback=_engine_flags,
)


def _examples(*lines: str, commands: bool = False) -> str:
    """Return an epilog that click does not rewrap."""
    text = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    if commands:
        text += "\n\n\b\nOther commands (gen-consumer COMMAND -h):\n" + "\n".join(
            f"  {name:<9} {one.get_short_help_str(80)}"
            for name, one in sorted(command.commands.items())
            if name != _DEFAULT
        )
    return text


class _Serving(click.Command):
    """The command without a name, whose help tells of the others as well."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.epilog = _examples(
            "gen-consumer --gpu 0 --model /models/Qwen3.6-27B",
            "gen-consumer --engine llamacpp --model smollm2 --run my-run --burst",
            commands=True,
        )
        super().format_epilog(ctx, formatter)


class _CardMemory(Bytes):
    """A card's memory as it is sold: 141GB are 141 GiB, about what nvidia-smi shows."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = value.upper().replace("GB", "GIB") if isinstance(value, str) else value
        return super().convert(text, param, ctx)


@click.group(cls=DefaultGroup, context_settings=_CONTEXT)
def command() -> None:
    """Keep one GPU's engine full, and see what it could do."""


@command.command(_DEFAULT, cls=_Serving, hidden=True, context_settings=_CONTEXT)
@click.option("--gpu", type=click.IntRange(min=0), help="The GPU to serve, counted by the host.")
@click.option("--model", help="Model: a folder, a .gguf file or a name.  [GENQ_MODEL]")
@click.option("--run", "runs", multiple=True, help="Only this run; may be repeated.")
@click.option(
    "--engine", type=click.Choice(["sglang", "llamacpp"]), help="What generates.  [GENQ_ENGINE]"
)
@click.option("--url", help="Attach to a running engine.")
@click.option(
    "--profile", metavar="P", help="Engine flags: a profile, auto or none.  [GENQ_PROFILE]"
)
@click.option("--print-command", is_flag=True, help="Print the engine's start as a shell script.")
@click.option("--burst", is_flag=True, help="End when nothing is left to lease.")
@click.option("--reproducible", is_flag=True, help="Equal seeds, equal tokens; slower.")
@click.option("--max-running", type=click.IntRange(min=1), help="Requests at once in the engine.")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of prompt and answer together.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Prometheus, on loopback.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@_flags
@version_option()
def serve(**given: Any) -> int:
    """Keep one GPU's engine full with leased prompts until stopped.

    Serves every run of the engine's model, best priority first. SIGTERM or Ctrl-C drains: what
    runs may finish, the rest is given back uncharged; the same again stops now.
    """
    import asyncio  # noqa: PLC0415 - --help starts fast

    from common.ids import run_name  # noqa: PLC0415
    from common.settings import load_settings  # noqa: PLC0415
    from common.telemetry.logs import setup_logging  # noqa: PLC0415
    from consumer.start import Options, print_command  # noqa: PLC0415
    from consumer.start import serve as run  # noqa: PLC0415

    names = ("model", "engine", "metrics_port", "log_level", "profile")
    settings = load_settings(**{name: given[name] for name in names})
    options = Options(
        gpu=given["gpu"],
        url=given["url"],
        runs=tuple(run_name(name) for name in given["runs"]),
        burst=given["burst"],
        max_running=given["max_running"],
        context=given["context"],
        reproducible=given["reproducible"],
        flags=given["flags"],
    )
    if given["print_command"]:
        return int(print_command(settings, options))
    setup_logging(level=settings.log_level, form=settings.log_format)
    if not given["url"]:
        _refuse_gguf_without_sglang(settings)
    return int(asyncio.run(run(settings, options)))


@command.command(
    context_settings=_CONTEXT,
    epilog=_examples(
        "gen-consumer explain --model /models/Qwen3.6-27B --card H200",
        "gen-consumer explain --gpu-memory 141GB --json -- --mamba-full-memory-ratio 3",
    ),
)
@click.option("--model", metavar="M", help="The model's folder.  [GENQ_MODEL]")
@click.option("--card", metavar="NAME", help="As in H200, A100 or L40S; default: this GPU.")
@click.option(
    "--gpu", type=click.IntRange(min=0), metavar="N", help="Ask NVML about this one; default: 0."
)
@click.option("--gpu-memory", type=_CardMemory(), metavar="SIZE", help="As sold: 141GB.")
@click.option("--profile", metavar="P", help="Take the flags of a profile.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=1024, show_default=True)
@click.option("--output-tokens", type=click.IntRange(1), default=1024, show_default=True)
@click.option(
    "--accept-length", type=click.FloatRange(1), help="Tokens that a check of drafts yields."
)
@_json
@_flags
def explain(flags: tuple[str, ...], **options: Any) -> int:
    """Show what a model takes of a card, what caps it, and which flag lifts that.

    Starts nothing: all is worked out from the model's config.json, the card and the flags.
    """
    from common.settings import load_settings  # noqa: PLC0415 - --help starts fast
    from consumer.tuning.commands import run_explain  # noqa: PLC0415

    settings = load_settings(model=options["model"])
    return run_explain(options, flags, model=settings.model, state_dir=settings.state_dir)


@command.group(
    invoke_without_command=True,
    context_settings=_CONTEXT,
    epilog=_examples("gen-consumer profiles", "gen-consumer profiles show h200-qwen3.6-27b"),
)
@_json
@click.pass_context
def profiles(ctx: click.Context, *, as_json: bool) -> int | None:
    """List measured engine settings, or show one with its origin."""
    if ctx.invoked_subcommand is None:
        return _list(as_json=as_json)
    return None


@profiles.command("list", context_settings=_CONTEXT)
@_json
def list_profiles(*, as_json: bool) -> int:
    """List every profile: where it belongs, and what it gained."""
    return _list(as_json=as_json)


@profiles.command("show", context_settings=_CONTEXT)
@click.argument("name")
@_json
def show_profile(name: str, *, as_json: bool) -> int:
    """Show a profile as the TOML file that it is."""
    from common.settings import load_settings  # noqa: PLC0415 - --help starts fast
    from consumer.tuning.commands import run_show  # noqa: PLC0415

    return run_show(name, state_dir=load_settings().state_dir, as_json=as_json)


@command.command(
    context_settings=_CONTEXT,
    epilog=_examples(
        "gen-consumer doctor --gpu 3 --model /models/Qwen3.6-27B",
        "gen-consumer doctor --json | jq '.findings[] | select(.level == \"fail\")'",
    ),
)
@click.option("--gpu", type=click.IntRange(min=0), metavar="N", help="The GPU; default: 0.")
@click.option("--model", metavar="M", help="The model.  [GENQ_MODEL]")
@click.option("--engine", type=click.Choice(["sglang", "llamacpp"]), help="[GENQ_ENGINE]")
@_json
def doctor(*, gpu: int | None, model: str | None, engine: str | None, as_json: bool) -> int:
    """Check settings, Redis, storage, card, engine and model; say what to do. Changes nothing.

    Exits with the code of what fails: 2 settings or host, 4 Redis, 5 storage, 6 card, engine or
    model; else 0.
    """
    from common.doctor.command import run_doctor  # noqa: PLC0415 - --help starts fast
    from consumer.doctor import consumer_patient  # noqa: PLC0415

    flags = {"model": model, "engine": engine}
    return int(run_doctor(consumer_patient(gpu), flags, as_json=as_json))


def _list(*, as_json: bool) -> int:
    from common.settings import load_settings  # noqa: PLC0415 - --help starts fast
    from consumer.tuning.commands import run_list  # noqa: PLC0415

    return run_list(state_dir=load_settings().state_dir, as_json=as_json)


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


command.add_command(tune_command(_flags))
command.add_command(check_command(_flags))


command.default = serve


def main() -> None:
    """Run as a program."""
    run_cli(command)
