"""Records of ours from parsed JSON, checked field by field.

The counterpart of :func:`common.codec.dumps`: what it wrote comes back as the same dataclass.
Unknown fields are passed over, since a newer writer may have added them.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from common import ids
from common.errors import StoreError
from common.installing import UPGRADE

T = TypeVar("T")


class NewerVersionError(ValueError):
    """A record that a newer genq wrote: it is whole, and to be left to a program that knows it."""


class NewerObjectError(StoreError):
    """An object of storage is whole, and of a newer version than this program knows."""


def refuse_newer(raw: Any, what: str, known: int) -> None:
    """Raise NewerVersionError if ``raw`` names a version above the one that is known here."""
    version = raw.get("version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > known:
        raise NewerVersionError(
            f"{what} is of version {version}; this program reads up to {known}: {UPGRADE}"
        )


def newer(what: str, error: NewerVersionError) -> NewerObjectError:
    """Return the refusal to read an object that a newer genq wrote."""
    return NewerObjectError(f"{what} was written by a newer genq.", why=str(error), fix=UPGRADE)


def build(cls: type[T], raw: Any) -> T:
    """Return ``raw`` as a ``cls``, a dataclass of ours.

    Raises:
        ValueError: a field is missing or of another type; the message names it.
    """
    made: T = _dataclass(cls, raw, cls.__name__)
    return made


@cache
def _plan(cls: type) -> list[tuple[Field[Any], Any]]:
    # The records name the id types for type checkers only; here they are needed for real.
    hints = get_type_hints(cls, localns=dict(vars(ids)))
    return [(field, hints[field.name]) for field in fields(cls)]


def _dataclass(cls: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise _not_a(where, "an object")
    given: dict[str, Any] = {}
    for field, hint in _plan(cls):
        if field.name in raw:
            given[field.name] = _value(hint, raw[field.name], f"{where}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}.{field.name} is missing")
    return cls(**given)


def _value(hint: Any, raw: Any, where: str) -> Any:
    if hint is Any:
        return raw
    hint = getattr(hint, "__supertype__", hint)  # a NewType is its base at run time
    if is_dataclass(hint):
        return _dataclass(hint, raw, where)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(get_args(hint), raw, where)
    if origin in (list, tuple):
        return _sequence(origin, get_args(hint)[0], raw, where)
    if origin is dict:
        return _mapping(get_args(hint)[1], raw, where)
    return _scalar(hint, raw, where)


def _union(choices: tuple[Any, ...], raw: Any, where: str) -> Any:
    if raw is None and types.NoneType in choices:
        return None
    (choice,) = (choice for choice in choices if choice is not types.NoneType)
    return _value(choice, raw, where)


def _sequence(kind: Any, hint: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, list):
        raise _not_a(where, "a list")
    if hint in (int, str) and all(type(one) is hint for one in raw):
        return kind(raw)  # thousands of token ids: no call for each
    return kind(_value(hint, one, f"{where}[{at}]") for at, one in enumerate(raw))


def _mapping(hint: Any, raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise _not_a(where, "an object")
    return {key: _value(hint, one, f"{where}.{key}") for key, one in raw.items()}


def _not_a(where: str, kind: str) -> ValueError:
    return ValueError(f"{where} is not {kind}")


def _scalar(hint: Any, raw: Any, where: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(raw)
    if hint is float and type(raw) is int:
        return float(raw)
    if type(raw) is not hint:
        raise ValueError(f"{where} is {type(raw).__name__}, not {hint.__name__}")
    return raw
