"""A card for a machine without one: a module ``pynvml`` that reads from a file what becomes of it.

``python -m tests.support.lost_card`` is ``gen-consumer`` with the stand-in for SGLang, and with a
card that is looked at often, so that its loss is found in a second or two.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING

from consumer.engine import gpu, gpu_loss, gpu_watch
from tests.support import fake_consumer

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CARD = "NVIDIA H200, GPU-7e57"
LOST, RESET_REQUIRED, UNKNOWN = 15, 16, 999  # of NVML's reference
MODULE = '''\
"""Speaks for one card, until a file beside this one holds the number of an error, or "silent"."""
import threading
from pathlib import Path
from types import SimpleNamespace

_STATE = Path(__file__).with_name("error")
let_go = threading.Event()


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


def nvmlInit():
    pass


def nvmlDeviceGetHandleByIndex(index):
    if _STATE.exists():
        error = _STATE.read_text()
        if error == "silent":
            let_go.wait()
            return index
        raise NVMLError(int(error))
    return index


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(used=1 << 30, total=141 << 30)


def nvmlDeviceGetName(handle):
    return "NVIDIA H200"


def nvmlDeviceGetUUID(handle):
    return "GPU-7e57"
'''


class Driver:
    """The module in a folder of its own; what it says of the card may be changed at any time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "pynvml.py").write_text(MODULE)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Into this process, for a test."""
        spec = spec_from_file_location("pynvml", self.folder / "pynvml.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        self._let_go = module.let_go.set

    def lose(self, code: int | str) -> None:
        written = self.folder / "written"  # put in place whole: it is read at any moment
        written.write_text(str(code))
        written.rename(self.folder / "error")

    def silence(self) -> None:
        """Have no call return any more."""
        self.lose("silent")

    def let_go(self) -> None:
        """Let the calls of this process return that hang, so that their threads end."""
        self._let_go()

    def find(self) -> None:
        (self.folder / "error").unlink()


if __name__ == "__main__":
    gpu_watch.LOOK_SECONDS, gpu_watch.SILENT_SECONDS = 0.2, 1.0
    gpu_loss.QUIET_SECONDS, gpu.ANSWER_SECONDS = 2.0, 2.0
    fake_consumer.main()
