"""Known last words of engines, and what a human should change.

Each line was seen in a real log or stands in an engine's source. ``lasting``: starting again
without a change is pointless.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.installing import install

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """A failure that its text gives away."""

    pattern: re.Pattern[str]
    cause: str
    fix: str
    lasting: bool = False  # another start of the same engine ends the same way
    memory: bool = False  # an engine that takes less of the GPU's memory may live


def _known(
    pattern: str, cause: str, fix: str, *, lasting: bool = False, memory: bool = False
) -> KnownFailure:
    return KnownFailure(re.compile(pattern, re.IGNORECASE), cause, fix, lasting, memory)


_BAD = re.compile(r"error|exception|killed", re.IGNORECASE)

# The first match, from the top, is taken: the sharper texts come first.
KNOWN = (
    _known(
        r"leave no GPU memory for the KV cache|Not enough memory.*mem-fraction-static",
        "The weights leave too little GPU memory for the cache.",
        "Raise --mem-fraction-static; with speculative decoding rather lower"
        " --max-running-requests; and look for other processes on the card with nvidia-smi."
        "\nWhat fits: gen-consumer explain --model MODEL -- FLAGS",
    ),
    _known(
        r"Not enough GPU memory for hybrid|state cache is too small to serve any requests",
        "The states of the model's linear layers find no room beside its weights.",
        "Raise --mem-fraction-static or --max-mamba-cache-size, or try --disable-radix-cache."
        "\nWhat fits: gen-consumer explain --model MODEL -- FLAGS",
    ),
    _known(
        r"CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED",
        "The GPU ran out of memory.",
        "Lower --mem-fraction-static or --max-running-requests, and look for other processes on"
        " the card with nvidia-smi.",
        memory=True,
    ),
    _known(
        r"GPU is lost|fallen off the bus|\bXid\b|uncorrectable ECC|cudaErrorECCUncorrectable",
        "The GPU is lost or broken.",
        "Look at dmesg and nvidia-smi; the card needs a reset or a replacement.",
        lasting=True,
    ),
    _known(
        r"device-side assert|cudaErrorAssert",
        "A kernel met a value it cannot take, most likely a token id outside the vocabulary.",
        "Check that the tokenizer belongs to the model: both come from the same folder.",
    ),
    _known(
        r"no CUDA-capable device|CUDA driver version is insufficient|Found no NVIDIA driver"
        r"|invalid device ordinal|No CUDA GPUs are available",
        "The engine sees no usable GPU.",
        "Check nvidia-smi, the driver and the number given with --gpu.",
        lasting=True,
    ),
    _known(
        r"unrecognized arguments?|invalid choice|error: argument|ambiguous option",
        "The engine does not know one of its flags.",
        "Remove or correct the flag named above; flags change between releases.",
        lasting=True,
    ),
    _known(
        r"No module named ['\"]?(sglang|xllamacpp)\b",
        "The engine is not installed in this Python.",
        f"On a GPU machine: {install('sglang')}. For the small one: {install('local')}.",
        lasting=True,
    ),
    _known(
        r"Repo id must be|is not a local folder and is not a valid model identifier"
        r"|RepositoryNotFoundError|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|failed to open GGUF|error loading model|Can't load the configuration of",
        "The model cannot be found or read.",
        "Check --model: a folder or .gguf file on this machine, or a name that it can download.",
        lasting=True,
    ),
    _known(
        r"address already in use|error while attempting to bind|couldn't bind",
        "Another process has the engine's port.",
        "Start gen-consumer again: it takes a port that is free then.  Who has this one: ss -ltnp",
    ),
    _known(
        r"No space left on device",
        "The disk is full.",
        "Make room in the temp folder and in the state folder.",
    ),
    _known(
        r"watchdog timeout",
        "One step of the engine took longer than its watchdog allows.",
        "Look for a hung GPU with nvidia-smi; if prompts are very long, raise --watchdog-timeout.",
    ),
)


# A server that dies young still has its settings among its last words; their names are no failure.
_SETTINGS = "server_args="


def recognise(lines: Sequence[str]) -> KnownFailure | None:
    """Return the failure that the last words give away, or None."""
    text = "\n".join(line for line in lines if _SETTINGS not in line)
    return next((known for known in KNOWN if known.pattern.search(text)), None)


def last_words(lines: Sequence[str], *, limit: int = 12) -> str:
    """Return the lines worth showing: from the last error on, else the last few."""
    kept = [line for line in lines if line.strip()]
    marks = [
        n
        for n, line in enumerate(kept)
        if re.search(r"error|exception|killed", line, re.IGNORECASE)
    ]
    start = max(0, marks[-1] - 2) if marks else max(0, len(kept) - limit)
    return "\n".join(kept[start : start + limit])
