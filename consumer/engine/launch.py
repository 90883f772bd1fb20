"""Command lines and environments of engines. Pure: no file, process or network is touched."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UsageError
from consumer.engine.api import EngineSpec, Launch
from consumer.engine.guard import KEY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = Path(__file__).parent
# What an engine must not learn: our own settings, and secrets of the store and the queue.
_WITHHELD = ("GENQ_", "AWS_", "S3_", "REDIS_", "RQ_", "MINIO_")
_RESERVED = {"--host", "--port", "--api-key", "--model-path", "--model", "--tokenizer-path"}

FRACTION_FLAG, RUNNING_FLAG = "--mem-fraction-static", "--max-running-requests"
FRACTION_STEP = 0.03  # 4 GiB of an H200: more than one chunk of prefill takes for itself
LEAST_FRACTION = 0.5
RUNNING_STEP = 0.75

# Without it a seed is taken and has no effect; with it, tokens are equal in any company.
DETERMINISTIC_FLAG = "--enable-deterministic-inference"
LLAMA_CONTEXT = 4096
LLAMA_RUNNING = 4


def engine_environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an engine: ``base`` without our secrets, and ``extra``."""
    kept = {name: value for name, value in base.items() if not name.startswith(_WITHHELD)}
    return kept | dict(extra)


def sglang_launch(spec: EngineSpec, model: str, flags: tuple[str, ...]) -> Launch:
    """Return how SGLang serves ``model``. ``flags`` are the user's, in this release's names.

    Raises:
        UsageError: a flag is one that the consumer sets itself.
    """
    refuse_reserved(flags)
    argv = [
        *_python("sglang_server.py"),
        *("--model-path", model, "--host", spec.host, "--port", str(spec.port)),
        "--enable-metrics",
    ]
    if spec.max_running is not None:
        argv += ["--max-running-requests", str(spec.max_running)]
    if spec.context is not None:
        argv += ["--context-length", str(spec.context)]
    if spec.reproducible and DETERMINISTIC_FLAG not in flags:
        argv.append(DETERMINISTIC_FLAG)
    env = {
        **_gpu(spec),
        KEY_VARIABLE: spec.api_key,
        # A dying server would hold the GPU for a minute longer, to write dumps that nobody reads.
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "false",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "false",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS": "0",
    }
    return Launch((*argv, *flags), env)


def lighter_sglang(
    spec: EngineSpec, *, fraction: float | None, running: int | None
) -> tuple[EngineSpec, str] | None:
    """Return a spec that takes one step less of the GPU's memory, and the change in words.

    What runs out is the memory that SGLang left free for activations, so the share that it takes
    for weights and caches goes down; where that is unknown, or small already, fewer requests run.

    Args:
        spec: as it ran out of memory.
        fraction: the share that it took, where no flag says so.
        running: how many requests it ran at once; None: not known.
    """
    given = _value(spec.flags, FRACTION_FLAG)
    fraction = fraction if given is None else given
    if fraction is not None and fraction - FRACTION_STEP >= LEAST_FRACTION:
        less = round(fraction - FRACTION_STEP, 3)
        flags = (*spec.flags, FRACTION_FLAG, f"{less:g}")  # of two, argparse takes the last
        return replace(spec, flags=flags), f"{FRACTION_FLAG} {fraction:g} -> {less:g}"
    asked = _value(spec.flags, RUNNING_FLAG) or spec.max_running
    running = int(min(filter(None, (asked, running)), default=0))  # fewer may fit than were asked
    if running < 2:
        return None
    fewer = int(running * RUNNING_STEP)
    flags = (*spec.flags, RUNNING_FLAG, str(fewer))
    # A profile's window was measured with more running requests.
    lighter = replace(spec, max_running=None, window=None, flags=flags)
    return lighter, f"{RUNNING_FLAG} {running} -> {fewer}"


def _value(flags: tuple[str, ...], name: str) -> float | None:
    """Return the number that the last such flag gives; None: there is none."""
    found = None
    for flag, following in zip(flags, (*flags[1:], ""), strict=False):
        if flag == name or flag.startswith(name + "="):
            with suppress(ValueError):
                found = float(flag.partition("=")[2] or following)
    return found


def llamacpp_launch(spec: EngineSpec, model: str, *, threads: int) -> Launch:
    """Return how the embedded llama-server serves the GGUF file ``model``.

    Raises:
        UsageError: a flag is one that the consumer sets itself, or it asks for equal tokens and
            for several requests at once.
    """
    refuse_reserved(spec.flags)
    argv = [
        *_python("llama_server.py"),
        *("--model", model, "--host", spec.host, "--port", str(spec.port)),
        *("--slots", str(_llama_slots(spec))),
        *("--context", str(spec.context or LLAMA_CONTEXT)),
        *("--threads", str(threads)),
    ]
    # Idle OpenMP threads spin by default and would starve everything else on a small machine.
    env = {**_gpu(spec), KEY_VARIABLE: spec.api_key, "OMP_WAIT_POLICY": "PASSIVE"}
    return Launch((*argv, *spec.flags), env)


def _llama_slots(spec: EngineSpec) -> int:
    """Return how many requests run at once; alone, each is computed in the same steps again."""
    if not spec.reproducible:
        return spec.max_running or LLAMA_RUNNING
    if (spec.max_running or 1) > 1:
        raise UsageError(
            f"--reproducible does not go with --max-running {spec.max_running}.",
            why="llama.cpp computes a request in other steps when others run beside it.",
            fix="Leave --max-running out: one request runs at a time.",
        )
    return 1


def refuse_reserved(flags: tuple[str, ...]) -> None:
    """Refuse engine flags that would contradict what the consumer relies on.

    Raises:
        UsageError: names the flag.
    """
    for flag in flags:
        name = flag.partition("=")[0]
        if name in _RESERVED:
            raise UsageError(
                f"{name} cannot be passed to the engine.",
                why="The consumer sets model, address and key itself.",
                fix="Leave it out. A model: gen-consumer --model NAME; your own server: --url URL",
            )


def _python(script: str) -> tuple[str, ...]:
    # -P: the folder of the script must not shadow modules (it holds one called http).
    return (sys.executable, "-P", str(_HERE / script))


def _gpu(spec: EngineSpec) -> dict[str, str]:
    if spec.gpu is None:
        return {}
    # By bus order, as nvidia-smi and NVML count; and one card, so that all libraries agree.
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(spec.gpu)}
