"""Rows as people have them, recognised and brought into the one form that the system knows.

Recognised in this order, by the first key that is there and not null:

    batch          ``body`` beside ``custom_id``: a line of an OpenAI batch file
    messages       ``messages``: OpenAI's chat format
    conversations  ``conversations``: ShareGPT's ``from`` and ``value``
    turns          ``turns``: user turns, answered one after another
    prompt         ``prompt``: a string, or messages
    text           ``text``, or the field that the user names

Settings such as ``max_tokens`` are the row's own; every key that means nothing here travels to the
output as metadata. A closing assistant turn is what gets generated anew: it is taken off and kept
in the metadata as ``reference``, unless the rows' own answers are what is wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.codec import dumps
from common.records import Row, Sampling
from common.turns import steps
from producer.sources.messages import (
    SAMPLING_NAMES,
    chat_messages,
    sampling_of,
    sharegpt_messages,
    texts,
)
from producer.sources.records import RowError

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = ("batch", "messages", "conversations", "turns", "prompt", "text")
# Parts of a request that change an answer and that a run does not carry out.
UNSUPPORTED = ("tools", "tool_choice", "functions", "response_format", "logit_bias")
_BATCH_URLS = ("/v1/chat/completions", "/v1/completions")
_BATCH_NOISE = ("stream", "stream_options")
_REFERENCE = "reference"


def canonical_row(
    number: int,
    raw: dict[str, Any],
    *,
    shape: str | None = None,
    field: str | None = None,
    keep_answers: bool = False,
) -> Row:
    """Return row ``number`` of the run, made of what was found.

    ``shape`` is one of :data:`FORMATS` (None: recognise it), ``field`` the key of plain text.
    ``keep_answers``: the row's own answers are what is wanted of it, and stay.

    Raises:
        RowError: it is of no known shape, or something in it cannot be used; says what.
    """
    fields = {name: value for name, value in raw.items() if value is not None}
    shape = "text" if field else shape or shape_of(fields)
    row_id = _take_id(fields)
    beside: dict[str, Any] = {}
    if shape == "batch":
        beside, fields = _open_batch(fields)
        shape = shape_of(fields)
    messages = _take_messages(fields, shape, field)
    sampling = _take_sampling(fields)
    if keep_answers:
        _check_answers(messages)
        reference = None
    else:
        reference = _split_reference(messages)
    _check(messages)
    if reference is not None:
        fields[_REFERENCE if _REFERENCE not in fields else f"{_REFERENCE}_turn"] = reference
    return Row(i=number, messages=messages, id=row_id, sampling=sampling, metadata=beside | fields)


def shape_of(fields: dict[str, Any]) -> str:
    """Return the name of the first shape in the order above that the row has.

    Raises:
        RowError: it has none.
    """
    if "body" in fields and "custom_id" in fields:
        return "batch"
    for shape in FORMATS[1:]:
        if shape in fields:
            return shape
    keys = ", ".join(sorted(str(key)[:30] for key in fields)[:8]) or "none"
    raise RowError(
        "no prompt in it: none of body, messages, conversations, turns, prompt, text"
        f" (its keys: {keys}); name one with --field"
    )


def _take_id(fields: dict[str, Any]) -> str | None:
    """Take the row's own name out: ``custom_id``, else ``id``; numbers are written out."""
    for name in ("custom_id", "id"):
        if name in fields:
            value = fields.pop(name)
            return value if isinstance(value, str) else dumps(value).decode()
    return None


def _open_batch(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what stands beside the request of a batch line, and the request."""
    body = fields.pop("body", None)
    method, url = fields.pop("method", "POST"), fields.pop("url", _BATCH_URLS[0])
    if not isinstance(body, dict):
        raise RowError("body must be an object")
    if method != "POST" or url not in _BATCH_URLS:
        raise RowError(f"only POST {' and '.join(_BATCH_URLS)} can be answered")
    request = {name: value for name, value in body.items() if value is not None}
    if request.pop("n", 1) != 1:
        raise RowError("n must be 1; ask for more completions of every row with --samples")
    for name in _BATCH_NOISE:
        request.pop(name, None)  # how an answer is sent, not what it is
    request.pop("custom_id", None)  # the line's own counts
    return fields, request


def _take_messages(fields: dict[str, Any], shape: str, field: str | None) -> list[dict[str, Any]]:
    key = field or shape
    if key not in fields:
        raise RowError(f"it has no {key[:60]!r}")
    value = fields.pop(key)
    read: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
        "messages": chat_messages,
        "conversations": sharegpt_messages,
        "turns": lambda turns: [_user(text) for text in texts(turns, "turns")],
        "prompt": _prompt,
        "text": lambda text: [_user(_string(text, key))],
    }
    messages = read[shape](value)
    if shape in ("conversations", "prompt", "turns") and isinstance(fields.get("system"), str):
        messages.insert(0, {"role": "system", "content": fields.pop("system")})
    return messages


def _prompt(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return chat_messages(value)
    return [_user(_string(value, "prompt"))]


def _string(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise RowError(f"{key[:60]} must be a string")
    return value


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _take_sampling(fields: dict[str, Any]) -> Sampling:
    own = {name: fields.pop(name) for name in SAMPLING_NAMES if name in fields}
    return sampling_of(own) if own else Sampling()


def _split_reference(messages: list[dict[str, Any]]) -> Any:
    """Take closing assistant turns off; return a text if it is one plain turn, else the turns."""
    dropped: list[dict[str, Any]] = []
    while messages and messages[-1]["role"] == "assistant":
        dropped.insert(0, messages.pop())
    if not dropped:
        return None
    plain = len(dropped) == 1 and set(dropped[0]) == {"role", "content"}
    return dropped[0]["content"] if plain else dropped


def _check_answers(messages: list[dict[str, Any]]) -> None:
    """Refuse a row without an answer to keep, or with one that is more than text."""
    answers = [
        message for step in steps(messages) for message in messages[step.asked + 1 : step.after]
    ]
    if not answers:
        raise RowError("it holds no answer to keep: no assistant's message after a user's")
    if any(answer.get("tool_calls") for answer in answers):
        raise RowError("an answer in it calls a tool, and no tool's message follows")


def _check(messages: list[dict[str, Any]]) -> None:
    if not messages:
        raise RowError("there is no message to answer")
    if messages[-1]["role"] == "system":
        raise RowError("it ends with a system message: there is nothing to answer")
    for number, message in enumerate(messages):
        if message["role"] == "user" and not message["content"].strip():
            raise RowError(f"message {number}: the prompt is empty")
