"""Integers of over 64 bits: JSON readers make floats of them, and distinct ids become one.

A row that holds one is refused, and says where: no reader behind us could take it otherwise.
Floats are what JSON readers take them for, however many digits are written.
"""

from __future__ import annotations

import math
import re
from typing import Any

from common.codec import loads
from producer.sources.records import RowError

_INT64 = range(-(2**63), 2**64)  # what readers of JSON keep: signed, and unsigned
_FEWEST_DIGITS = 19  # of an integer outside of it
_EXACT = 2**53  # whole numbers beyond it may have been others before they became floats
_KEY_CHARS = 30

# Digits as 0 and all else as blanks: thirty times faster to search than by an expression.
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))
_MANY = b"0" * _FEWEST_DIGITS
_TOKEN = re.compile(
    rb'(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+")(?P<colon>\s*+:\s*+)?'
    rb"|(?P<whole>-?\d++)(?P<float>(?:\.\d++)?+(?:[eE][+-]?\d++)?+)",
    re.DOTALL,
)
_TOO_LARGE = (
    "{} is an integer of over 64 bits, of which readers of JSON lose digits:"
    " write it as text, in quotes"
)


def refuse_large(text: bytes) -> None:
    """Return if no integer in a JSON text is of over 64 bits; digits within strings are text.

    Raises:
        RowError: one is; says under which key where it stands right behind one.
    """
    if _MANY not in text.translate(_DIGITS):
        return
    key, behind = b"", -1
    for token in _TOKEN.finditer(text):
        if token["text"]:
            key, behind = (token["text"], token.end()) if token["colon"] else (b"", -1)
        elif not token["float"] and _is_large(token["whole"]):
            raise RowError(_TOO_LARGE.format(_name(key if token.start() == behind else b"")))


def doubtful_float(value: Any) -> bool:
    """Tell whether a value holds a float that may have been another number, an integer, before."""
    if isinstance(value, float):
        return _EXACT <= abs(value) < math.inf
    if isinstance(value, dict):
        return any(map(doubtful_float, value.values()))
    return isinstance(value, list) and any(map(doubtful_float, value))


def _is_large(digits: bytes) -> bool:
    size = len(digits.lstrip(b"-"))
    # The length first: Python refuses to count some thousands of digits.
    return size >= _FEWEST_DIGITS and (size > _FEWEST_DIGITS + 1 or int(digits) not in _INT64)


def _name(key: bytes) -> str:
    try:
        return repr(loads(key)[:_KEY_CHARS])
    except ValueError:  # not behind a key, or it has a lone surrogate
        return "a number in it"
