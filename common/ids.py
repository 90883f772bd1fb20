"""Names and numbers of runs, rows and items, and what may be made of them.

Only names made here ever become keys, paths or job ids. What a user called a row is data.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NewType

from common.errors import UsageError

RunName = NewType("RunName", str)
Epoch = NewType("Epoch", str)
Token = NewType("Token", str)
WorkerName = NewType("WorkerName", str)
Item = NewType("Item", int)

_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SEED_BITS = 31  # what every engine accepts as a seed


def run_name(text: str) -> RunName:
    """Return ``text`` as a run's name.

    Raises:
        UsageError: it is not 1 to 63 of a-z, 0-9 and ``-``, or begins with ``-``.
    """
    if not _RUN.fullmatch(text):
        raise UsageError(
            f"{text!r} cannot name a run.",
            why="A name has 1 to 63 of a-z, 0-9 and '-', and does not begin with '-'.",
            fix=f"For example: --run {suggest_run_name(text)}",
        )
    return RunName(text)


def suggest_run_name(text: str) -> RunName:
    """Return the valid run name nearest to ``text``, for example to a file's name."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return RunName(cleaned[:63].rstrip("-") or "run")


def item_of(row: int, sample: int, samples: int) -> Item:
    """Return the number of sample ``sample`` of row ``row``, of ``samples`` a row."""
    return Item(row * samples + sample)


def row_of(item: Item, samples: int) -> tuple[int, int]:
    """Return ``(row, sample)`` of an item."""
    return divmod(item, samples)


def job_id(run: RunName, item: Item) -> str:
    """Return the RQ job id of an item: letters, digits and ``-`` only, as RQ demands."""
    return f"{run}-{item}"


def item_of_job(run: RunName, job: str) -> Item | None:
    """Return the item that an RQ job id names, or None if the id is not one of the run's."""
    number = job.removeprefix(f"{run}-")
    if number == job or not number.isascii() or not number.isdigit() or str(int(number)) != number:
        return None
    return Item(int(number))


def new_epoch() -> Epoch:
    """Return a fresh random epoch: 16 hexadecimal characters."""
    return Epoch(secrets.token_hex(8))


def new_nonce() -> str:
    """Return 16 random hexadecimal characters: the stem of delivery tokens and request ids."""
    return secrets.token_hex(8)


def derived_seed(run_seed: int, item: Item, attempt: int) -> int:
    """Return the sampling seed of one attempt at an item, in ``[0, 2**31)``.

    Distinct per item and attempt (up to hash collisions), and the same again on every rerun.
    """
    digest = hashlib.blake2b(f"{run_seed}:{item}:{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (1 << _SEED_BITS)
