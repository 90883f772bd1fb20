"""SpecForge's conversation rows: ``{"id": str, "conversations": [message, ...]}``.

Facts, from SpecForge 0.2.0 (`specforge/data/parse.py`, `preprocessing.py`, `prompt_builder.py`) and
its page on data preparation (`docs/basic_usage/data_preparation.md`):

- A message has ``role`` (system, user, assistant, tool) and ``content``, both strings; what the
  model thought is ``reasoning_content`` beside them. ``tool_calls`` may be JSON in a string, and is
  that here: columns of one kind in all rows are what Arrow needs. For the same reason each
  assistant's message has ``reasoning_content``, "" where nothing was thought.
- Every column of a row but ``id`` and ``tools`` is handed to the chat template as an argument, so
  there is no other.
- It renders and tokenizes the conversation itself, and learns from every assistant's message. To
  learn from each turn in the context that the model had, thoughts of earlier turns left out, export
  one row a turn (``--per-turn``) and set ``data.train_only_last_turn: true``.
- Files are plain ``.json`` or ``.jsonl``: rows are read without unpacking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common import codec
from producer.export.rows import Spoken, conversation, name_of, per_turn, text_of

if TYPE_CHECKING:
    from common.records import Completion
    from producer.export.rows import Options

_CARRIED = ("name", "tool_call_id")


def rows(completion: Completion, options: Options) -> list[dict[str, Any]]:
    """Return the rows of one completion.

    Raises:
        UnfitError: a message holds more than text.
    """
    spoken = conversation(completion)
    if not options.per_turn:
        return [_row(spoken, name_of(completion, options), options)]
    return [
        _row(one, name_of(completion, options, generation), options)
        for generation, one in enumerate(per_turn(spoken))
    ]


def _row(spoken: list[Spoken], name: str, options: Options) -> dict[str, Any]:
    return {"id": name, "conversations": [_message(one, options) for one in spoken]}


def _message(one: Spoken, options: Options) -> dict[str, str]:
    given = one.message
    made = {"role": str(given.get("role", "")), "content": text_of(given.get("content"))}
    if made["role"] == "assistant":
        thought = one.said.reasoning_content if one.said else given.get("reasoning_content")
        made["reasoning_content"] = (thought or "") if options.reasoning else ""
    if given.get("tool_calls"):
        made["tool_calls"] = codec.dumps(given["tool_calls"]).decode()
    return made | {name: given[name] for name in _CARRIED if isinstance(given.get(name), str)}
