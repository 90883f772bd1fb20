"""Messages of a chat as strangers write them, checked and brought into one form.

The canonical form of a message: ``role``, ``content`` as one string, and whatever else the chat
template may read (``name``, ``tool_calls``, ``reasoning_content`` ...), without nulls.
"""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from common.records import Sampling
from producer.sources.records import RowError

PARTS_JOINED_BY = "\n"
_ROLES = {
    "system": "system",
    "developer": "system",  # the newer name of the same thing; chat templates know the older one
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "tool": "tool",
}


class _Part(BaseModel):
    """A piece of a message's content; anything but text is refused by name."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: str | None = None


class _Message(BaseModel):
    """One message, in OpenAI's shape."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[_Part] | None = None


class _Turn(BaseModel):
    """One message, in ShareGPT's shape."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str = Field(validation_alias="from")
    content: str = Field(validation_alias="value")


class _Sampling(BaseModel):
    """Sampling settings of a row, within what engines accept."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None


_MESSAGES = TypeAdapter(list[_Message])
_TURNS = TypeAdapter(list[_Turn])
_TEXTS: TypeAdapter[list[str]] = TypeAdapter(list[Annotated[str, Field(strict=True)]])

# What people call the same setting, and what it is here.
SAMPLING_NAMES = {name: name for name in _Sampling.model_fields} | {
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
}


def sampling_of(fields: dict[str, Any]) -> Sampling:
    """Return checked sampling settings; ``fields`` may use any of :data:`SAMPLING_NAMES`.

    Raises:
        RowError: a value is out of its range, or one setting is given twice.
    """
    named: dict[str, Any] = {}
    for name, value in fields.items():
        if named.setdefault(SAMPLING_NAMES[name], value) != value:
            raise RowError(f"{SAMPLING_NAMES[name]} is given twice, under two names")
    try:
        checked = _Sampling.model_validate(named)
    except ValidationError as error:
        refuse(error)
    stop = (checked.stop,) if isinstance(checked.stop, str) else checked.stop
    if stop and "" in stop:
        raise RowError("stop: an empty string would end every answer at once; leave it out")
    values = {name: getattr(checked, name) for name in _Sampling.model_fields if name != "stop"}
    return Sampling(**values, stop=tuple(stop) if stop else None)


def chat_messages(value: Any) -> list[dict[str, Any]]:
    """Return OpenAI-style messages in canonical form.

    Raises:
        RowError: a message has no known role, or holds something other than text.
    """
    try:
        messages = _MESSAGES.validate_python(value)
    except ValidationError as error:
        refuse(error, inside="messages")
    return [_canonical(number, message) for number, message in enumerate(messages)]


def sharegpt_messages(value: Any) -> list[dict[str, Any]]:
    """Return ShareGPT's ``from``/``value`` turns in canonical form; ``role``/``content`` too.

    Raises:
        RowError: as :func:`chat_messages`.
    """
    if isinstance(value, list) and value and isinstance(value[0], dict) and "role" in value[0]:
        return chat_messages(value)
    try:
        turns = _TURNS.validate_python(value)
    except ValidationError as error:
        refuse(error, inside="conversations")
    return [
        {"role": _role(number, turn.role), "content": turn.content}
        for number, turn in enumerate(turns)
    ]


def texts(value: Any, name: str) -> list[str]:
    """Return a list of strings.

    Raises:
        RowError: it is none.
    """
    try:
        return _TEXTS.validate_python(value)
    except ValidationError as error:
        refuse(error, inside=name)


def refuse(error: ValidationError, *, inside: str = "") -> NoReturn:
    """Raise a RowError that names the field and what is wrong, and never quotes the row."""
    first = next((e for e in error.errors() if e["type"] != "string_type"), error.errors()[0])
    path = ".".join(str(step) for step in (inside, *first["loc"]) if step != "")
    raise RowError(f"{path}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def _role(number: int, role: str) -> str:
    try:
        return _ROLES[role.lower()]
    except KeyError:
        known = ", ".join(sorted(set(_ROLES)))
        raise RowError(f"message {number}: unknown role (known: {known})") from None


def _canonical(number: int, message: _Message) -> dict[str, Any]:
    extra = {
        name: value for name, value in (message.model_extra or {}).items() if value is not None
    }
    role = _role(number, message.role)
    content = _text(number, message.content)
    if content is None:
        if not (role == "assistant" and extra.get("tool_calls")):
            raise RowError(f"message {number}: it has no content")
        content = ""
    return {"role": role, "content": content, **extra}


def _text(number: int, content: str | list[_Part] | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    for part in content:
        if part.type not in ("text", "input_text") or part.text is None:
            kind = part.type if len(part.type) <= 40 else "an unknown"
            raise RowError(
                f"message {number}: it holds a part of type {kind}; only text can be answered"
                " (the engine would have to fetch images and the like by itself)"
            )
    return PARTS_JOINED_BY.join(part.text or "" for part in content)
