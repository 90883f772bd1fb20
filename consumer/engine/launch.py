"""Command lines and environments of engines. Pure: no file, process or network is touched."""

from __future__ import annotations

import sys
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
    env = {
        **_gpu(spec),
        KEY_VARIABLE: spec.api_key,
        # A dying server would hold the GPU for a minute longer, to write dumps that nobody reads.
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "false",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "false",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS": "0",
    }
    return Launch((*argv, *flags), env)


def llamacpp_launch(spec: EngineSpec, model: str, *, threads: int) -> Launch:
    """Return how the embedded llama-server serves the GGUF file ``model``.

    Raises:
        UsageError: a flag is one that the consumer sets itself.
    """
    refuse_reserved(spec.flags)
    argv = [
        *_python("llama_server.py"),
        *("--model", model, "--host", spec.host, "--port", str(spec.port)),
        *("--slots", str(spec.max_running or LLAMA_RUNNING)),
        *("--context", str(spec.context or LLAMA_CONTEXT)),
        *("--threads", str(threads)),
    ]
    # Idle OpenMP threads spin by default and would starve everything else on a small machine.
    env = {**_gpu(spec), KEY_VARIABLE: spec.api_key, "OMP_WAIT_POLICY": "PASSIVE"}
    return Launch((*argv, *spec.flags), env)


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
                fix="Use --model and --port of gen-consumer.",
            )


def _python(script: str) -> tuple[str, ...]:
    # -P: the folder of the script must not shadow modules (it holds one called http).
    return (sys.executable, "-P", str(_HERE / script))


def _gpu(spec: EngineSpec) -> dict[str, str]:
    if spec.gpu is None:
        return {}
    # By bus order, as nvidia-smi and NVML count; and one card, so that all libraries agree.
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(spec.gpu)}
