"""The commands ``gen-consumer tune`` and ``gen-consumer check``. Parses; imports the rest later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_gpu = click.option("--gpu", type=click.IntRange(min=0), metavar="N", help="The GPU to take.")
_model = click.option("--model", metavar="M", help="The model's folder or name.  [GENQ_MODEL]")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def tune_command(flags: Callable[..., Any]) -> click.Command:
    """Return the command; ``flags`` takes the engine's flags behind a ``--``."""

    @click.command(
        "tune",
        context_settings=_CONTEXT,
        epilog=_examples(
            "gen-consumer tune --gpu 0 --minutes 30 --run my-run --price 2.5",
            "gen-consumer tune --gpu 0 --minutes 30 --live my-run",
            "gen-consumer tune --gpu 0 --model M --prompts random:256:256 -- --language-model-only",
        ),
    )
    @_gpu
    @click.option(
        "--minutes", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True
    )
    @click.option("--run", metavar="RUN", help="Try with prompts of this run.")
    @click.option("--live", metavar="RUN", help="Work on this run while trying; all is committed.")
    @click.option("--prompts", metavar="P", help="A .jsonl file, or random:IN:OUT (tokens).")
    @_model
    @click.option("--allow-state-dtype", is_flag=True, help="States in bfloat16: other outputs.")
    @click.option("--allow-kv-dtype", is_flag=True, help="A cache in 8 bits: other outputs.")
    @click.option("--card", metavar="NAME", help="As in H200, where NVML does not tell.")
    @click.option("--price", type=click.FloatRange(min=0), help="Of a GPU-hour, for the savings.")
    @click.option("--fresh", is_flag=True, help="Forget this round, and begin it anew.")
    @_json
    @flags
    def tune(**given: Any) -> int:
        """Find the settings that give the most tokens a second, in one bounded round.

        Each trial is a real server. A round that was stopped goes on with the same command; its
        minutes are those of all calls. Ends with a report, and a profile that serves from then on.
        """
        return _tune(given)

    return tune


def check_command(flags: Callable[..., Any]) -> click.Command:
    """Return the command; ``flags`` as for :func:`tune_command`."""

    @click.command(
        "check",
        context_settings=_CONTEXT,
        epilog=_examples(
            "gen-consumer check --gpu 0 --model /models/Qwen3.6-27B",
            "gen-consumer check --gpu 0 --run my-run -- --attention-backend triton",
        ),
    )
    @_gpu
    @_model
    @click.option("--engine", type=click.Choice(["sglang", "llamacpp"]), help="[GENQ_ENGINE]")
    @click.option("--url", help="Check a running engine; nothing is launched.")
    @click.option("--run", metavar="RUN", help="Compare with the first engine of this run, too.")
    @click.option(
        "--profile", metavar="P", help="Flags of a profile, auto or none.  [GENQ_PROFILE]"
    )
    @_json
    @flags
    def check(**given: Any) -> int:
        """Check that an engine answers the same uncached, cached and in a crowd.

        Exit 6, with the texts side by side, where it does not: its answers are wrong, however
        fast and healthy it is. Consumers check each start by themselves.
        """
        return _check(given)

    return check


def _tune(given: dict[str, Any]) -> int:
    import asyncio  # noqa: PLC0415 - --help starts fast

    from common.errors import UsageError  # noqa: PLC0415
    from common.ids import run_name  # noqa: PLC0415
    from common.settings import load_settings  # noqa: PLC0415
    from common.telemetry.logs import setup_logging  # noqa: PLC0415
    from consumer.tuning.opening import TuneOptions  # noqa: PLC0415
    from consumer.tuning.tune import tune as run  # noqa: PLC0415

    if given["run"] and given["live"]:
        raise UsageError(
            "--run and --live exclude each other.",
            why="A live round takes its prompts from its run.",
            fix=f"gen-consumer tune --gpu 0 --live {given['live']}",
        )
    settings = load_settings(model=given["model"])
    name = given["live"] or given["run"]
    options = TuneOptions(
        gpu=given["gpu"],
        minutes=given["minutes"],
        run=run_name(name) if name else None,
        prompts=given["prompts"] or "",
        live=bool(given["live"]),
        allow_state_dtype=given["allow_state_dtype"],
        allow_kv_dtype=given["allow_kv_dtype"],
        card=given["card"],
        price=given["price"],
        fresh=given["fresh"],
        as_json=given["as_json"],
        flags=given["flags"],
    )
    setup_logging(level="error", form=settings.log_format)
    return int(asyncio.run(run(settings, options)))


def _check(given: dict[str, Any]) -> int:
    import asyncio  # noqa: PLC0415 - --help starts fast

    from common.ids import run_name  # noqa: PLC0415
    from common.settings import load_settings  # noqa: PLC0415
    from common.telemetry.logs import setup_logging  # noqa: PLC0415
    from consumer.tuning.check import CheckOptions  # noqa: PLC0415
    from consumer.tuning.check import check as run  # noqa: PLC0415

    names = ("model", "engine", "profile")
    settings = load_settings(**{name: given[name] for name in names})
    options = CheckOptions(
        gpu=given["gpu"],
        url=given["url"],
        run=run_name(given["run"]) if given["run"] else None,
        as_json=given["as_json"],
        flags=given["flags"],
    )
    setup_logging(level="error", form=settings.log_format)
    return int(asyncio.run(run(settings, options)))
