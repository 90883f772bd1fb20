"""What ``gen-consumer doctor`` adds: the card and who holds it, the driver, the engine's package.

Asks NVML, or nvidia-smi where the Python package for NVML is missing; starts no engine.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import psutil

from common.doctor.command import Patient
from common.doctor.engine_model import look_at_model
from common.doctor.findings import Finding, Level, Part, failed
from common.errors import EngineError
from common.installing import install
from consumer.engine import engine_named
from consumer.engine.api import EngineSpec
from consumer.engine.gpu import FREED_BYTES, gpu_facts
from consumer.engine.sglang_flags import version_tuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from common.settings import Settings

GIB = 1 << 30
OLDEST, NEWEST = (0, 5, 10), (0, 5, 23)  # releases of SGLang that were tried
_SMI = (
    "--query-gpu=index,name,driver_version,memory.total,memory.used",
    "--format=csv,noheader,nounits",
)
_SMI_SECONDS = 20.0
_PACKAGES = {"sglang": "sglang", "llamacpp": "xllamacpp"}


@dataclass(frozen=True, slots=True)
class Card:
    """A card, as NVML or nvidia-smi tells."""

    name: str
    driver: str
    total_bytes: int
    used_bytes: int


def consumer_patient(gpu: int | None) -> Patient:
    """Return what the doctor is to know of a consumer of GPU ``gpu``."""
    return Patient("consumer", writes=False, more=lambda settings: _more(settings, gpu))


def _more(settings: Settings, gpu: int | None) -> list[Finding]:
    return [
        *look_at_gpu(settings, gpu),
        look_at_engine(settings, gpu),
        *look_at_model(settings.model, needed=True),
    ]


def look_at_gpu(settings: Settings, gpu: int | None) -> Iterator[Finding]:
    """Yield what is to be said of the card; without a number, of the first."""
    number = 0 if gpu is None else gpu
    card = _by_nvml(number) or _by_smi(number)
    if card is None:
        yield _no_card(settings, gpu)
        return
    driver = f", driver {card.driver}" if card.driver else ""
    what = f"GPU {number}: {card.name}, {card.total_bytes / GIB:.0f} GiB{driver}"
    yield Finding(Part.GPU, "card", Level.OK, what)
    holder = lock_holder(settings.state_dir / "engines" / f"gpu{number}.lock")
    free = card.total_bytes - card.used_bytes
    room = f"{free / GIB:.1f} of {card.total_bytes / GIB:.1f} GiB free"
    if holder:
        fix = "Stop it before another is started there, or give that one another GPU."
        what = f"GPU {number} has a consumer: {holder}; {room}"
        yield Finding(Part.GPU, "holder", Level.WARN, what, fix)
    elif card.used_bytes > FREED_BYTES:
        fix = f"nvidia-smi -i {number}    (then end what holds it)"
        others = _others(number)
        what = f"others hold {card.used_bytes / GIB:.1f} GiB{others}; {room}"
        yield Finding(Part.GPU, "holder", Level.WARN, what, fix)
    else:
        yield Finding(Part.GPU, "holder", Level.OK, f"nobody; {room}")


def _no_card(settings: Settings, gpu: int | None) -> Finding:
    if gpu is None and settings.engine == "llamacpp":
        return Finding(Part.GPU, "card", Level.OK, "none seen, and none needed: llama.cpp, on CPU")
    if shutil.which("nvidia-smi"):
        what = "the driver does not answer" if gpu is None else f"there is no GPU {gpu} here"
        return Finding(Part.GPU, "card", Level.FAIL, what, "nvidia-smi -L")
    what = "no NVIDIA driver is here (neither NVML nor nvidia-smi answers)"
    fix = "Install the driver, or without a card: gen-consumer --engine llamacpp --model smollm2"
    return Finding(Part.GPU, "card", Level.FAIL, what, fix)


def _by_nvml(number: int) -> Card | None:
    facts = gpu_facts(number)
    if facts is None:
        return None
    driver = ""
    with suppress(Exception):  # a courtesy, and NVML answered a moment ago
        import pynvml  # noqa: PLC0415 - an optional package

        driver = str(pynvml.nvmlSystemGetDriverVersion())
    return Card(facts.name, driver, facts.total_bytes, facts.used_bytes)


def _by_smi(number: int) -> Card | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - its own path, fixed words
            [program, *_SMI], capture_output=True, text=True, timeout=_SMI_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    for line in done.stdout.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 5 and fields[0] == str(number):
            with suppress(ValueError):  # "[N/A]", as cards of shared memory say
                total, used = (int(field) << 20 for field in fields[3:])
                return Card(fields[1], fields[2], total, used)
    return None


def _others(number: int) -> str:
    """Return which processes hold the card, as far as they can be seen from here."""
    with suppress(Exception):
        import pynvml  # noqa: PLC0415 - an optional package

        handle: Any = pynvml.nvmlDeviceGetHandleByIndex(number)
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if pids := sorted(str(one.pid) for one in found):
            return f" (processes {', '.join(pids)})"
    return ""


def lock_holder(path: Path) -> str:
    """Return who holds an engine's lock, "" for nobody; looks only, and takes nothing."""
    try:
        who = orjson.loads(path.read_bytes())
        pid, host = int(who["pid"]), str(who["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if host != socket.gethostname():
        return f"process {pid} on {host}, if it lives" if host else ""
    try:
        held = any(path.samefile(one.path) for one in psutil.Process(pid).open_files())
    except psutil.NoSuchProcess:
        return ""
    except (psutil.Error, OSError):
        return f"process {pid}, of another user"
    return f"process {pid}" if held else ""


def look_at_engine(settings: Settings, gpu: int | None) -> Finding:
    """Return whether the engine could be launched: its package, and flags that it knows."""
    spec = EngineSpec(
        model=settings.model or "m",
        gpu=gpu,
        url=None,
        port=1,
        api_key="",
        state_dir=settings.state_dir,
    )
    package = _PACKAGES[settings.engine]
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    try:
        engine_named(settings.engine).launch(spec)
    except EngineError as error:
        if not version:
            return failed(Part.ENGINE, "package", error)
        # What it says of the model is found by the look at the model.
    release = version_tuple(version)
    if package == "sglang" and version and not OLDEST <= release[:3] <= NEWEST:
        what = f"sglang {version}: tried were 0.5.10 to 0.5.23"
        return Finding(Part.ENGINE, "package", Level.WARN, what, install("sglang"))
    return Finding(Part.ENGINE, "package", Level.OK, f"{package} {version or '(no version)'}")
