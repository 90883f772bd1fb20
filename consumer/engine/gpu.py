"""What NVML knows of a GPU, and the lock by which one consumer holds it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from common.errors import ConflictError
from common.private import open_private, private_folder

if TYPE_CHECKING:
    from consumer.engine.api import EngineSpec

FREED_BYTES = 1 << 30  # drivers and monitors hold some memory; more is somebody's model
ANSWER_SECONDS = 30.0  # a driver without a daemon of its own needs some to wake all cards


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A card as NVML sees it now."""

    name: str
    uuid: str
    total_bytes: int
    used_bytes: int


def gpu_facts(gpu: int) -> GpuFacts | None:
    """Return what NVML says of GPU ``gpu`` (counted by bus order), None without NVML or card.

    None, too, where the driver does not answer in time. Its call is left behind in a daemon
    thread, which holds up neither who asks nor the end of the process.
    """
    answers: queue.SimpleQueue[GpuFacts | None] = queue.SimpleQueue()
    asking = threading.Thread(target=lambda: answers.put(_ask(gpu)), name="gpu-facts", daemon=True)
    try:
        asking.start()
        return answers.get(timeout=ANSWER_SECONDS)
    except (queue.Empty, RuntimeError):  # the latter where no thread can be started
        return None


def _ask(gpu: int) -> GpuFacts | None:
    try:
        import pynvml  # noqa: PLC0415 - an optional package, and slow to load

        pynvml.nvmlInit()
        handle: Any = pynvml.nvmlDeviceGetHandleByIndex(gpu)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return GpuFacts(
            name=str(pynvml.nvmlDeviceGetName(handle)),
            uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
            total_bytes=int(memory.total),
            used_bytes=int(memory.used),
        )
    except Exception:  # noqa: BLE001 - facts are a courtesy: no driver, no card, no package
        return None


async def memory_freed(gpu: int | None, *, baseline_bytes: int | None, seconds: float) -> bool:
    """Wait until a GPU's memory in use is back at its level before the engine's start.

    True as well where nobody can say: a card that is gone is another's matter.
    """
    if gpu is None or baseline_bytes is None:
        return True
    deadline = time.monotonic() + seconds
    while True:
        facts = await asyncio.to_thread(gpu_facts, gpu)
        if facts is None or facts.used_bytes <= baseline_bytes + FREED_BYTES:
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.5)


class EngineLock:
    """The right to run an engine at one place (a GPU, or a port where there is none).

    Held until :meth:`release` or the end of this process, however it ends.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ConflictError: another consumer holds it; names its process and host.
            UsageError: others may write to the state folder.
        """
        folder = private_folder(self._spec.state_dir / "engines")
        path = folder / f"{self._spec.name}.lock"
        file = open_private(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(file)
            os.close(file)
            raise ConflictError(
                f"Another consumer has {_place(self._spec)}: {holder}.",
                why=f"It holds {path}.",
                fix="Stop that consumer first, or give this one another GPU with --gpu.",
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, orjson.dumps({"pid": os.getpid(), "host": socket.gethostname()}), 0)
        self._file = file

    def release(self) -> None:
        """Give the lock back; no error if it is not held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _holder(file: int) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        who = orjson.loads(os.pread(file, 4096, 0))
        return f"process {who['pid']} on {who['host']}"
    return "process unknown"


def _place(spec: EngineSpec) -> str:
    return f"port {spec.port}" if spec.gpu is None else f"GPU {spec.gpu}"
