"""Data sets of the Hugging Face hub, streamed by the ``datasets`` package where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from common.errors import InputError, UsageError
from producer.sources.numbers import doubtful_float
from producer.sources.parquet import row_of
from producer.sources.records import Fault, Place, Raw
from producer.sources.url import HUB_SCHEME

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPTIONS = ("split", "config", "revision")
_TEXT = ("csv", "json")  # which the package reads a column at a time: one float, and all are
_DOUBTFUL = (
    "it holds a float beyond 2^53, and the package `datasets` makes such ones of integers: write"
    " large integers as text, or download the files and name them"
)


def read_hub(address: str) -> Iterator[Raw | Fault]:
    """Yield the rows of ``hf://OWNER/NAME[/FILES][?split=S&config=C&revision=R]``, or a folder.

    The split is ``train`` unless another is named. ``hf://datasets/...`` means the same. A row
    out of a text file is a fault where one of its numbers may have lost digits on the way.

    Raises:
        UsageError: ``datasets`` is not installed, an option is unknown, or no owner is named.
        InputError: the data set cannot be had.
    """
    arguments = _arguments(address)
    try:
        from datasets import load_dataset  # noqa: PLC0415 - an extra, and seconds to import
    except ImportError as error:
        raise UsageError(
            f"{address} is read by the package `datasets`, which is not installed.",
            why=str(error),
            fix="pip install datasets    (or download the files and name them)",
        ) from error
    number = 0
    try:
        found = load_dataset(**arguments, streaming=True)
        as_text = found.info.builder_name in _TEXT
        for value in found:
            number += 1
            place = Place(address, number)
            doubtful = as_text and doubtful_float(value)
            yield Fault(place, _DOUBTFUL) if doubtful else row_of(place, value)
    except Exception as error:  # the package raises whatever its layers raise
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{address} cannot be read (at row {number + 1}).",
            why=text,
            fix="Check the name, the split, HF_TOKEN, and that this machine reaches the hub.",
        ) from error


def _arguments(address: str) -> dict[str, Any]:
    place, _, query = address.removeprefix(HUB_SCHEME).partition("?")
    options = dict(parse_qsl(query))
    if unknown := set(options) - set(_OPTIONS):
        raise UsageError(
            f"{address}: unknown option {min(unknown)!r}.",
            fix=f"Options are {', '.join(_OPTIONS)}: hf://OWNER/NAME?split=train",
        )
    arguments: dict[str, Any] = {
        "split": options.get("split", "train"),
        "name": options.get("config"),
        "revision": options.get("revision"),
    }
    if place.startswith("/"):
        return {"path": place, **arguments}
    owner, name, *files = [*place.removeprefix("datasets/").split("/", 2), ""]
    if not (owner and name):
        raise UsageError(
            f"{address} does not name OWNER/NAME.",
            why="Data sets of the hub are told apart by their owners.",
            fix=f"gen-producer load hf://OWNER/{owner or 'NAME'}    (its page says whose it is)",
        )
    if "@" in name:
        name, arguments["revision"] = name.split("@", 1)
    return {"path": f"{owner}/{name}", "data_files": files[0] or None, **arguments}
