"""OpenAI's shapes: chat rows for fine-tuning, and the output and error files of its Batch API.

Facts, from OpenAI's API description (``BatchRequestOutput``: one object a line in both files) and
from the types of its Python package 3.57 (``ChatCompletion``, ``CompletionUsage``):

- A fine-tuning row is ``{"messages": [...]}`` that ends with the assistant's answer. ``weight`` 0
  on an assistant's message keeps it from being learned; it stands where the model did not say it.
- A batch line has ``id``, ``custom_id``, ``response`` (``status_code``, ``request_id``, ``body``)
  and ``error`` (``code``, ``message``); one of the last two is null. ``custom_id`` is the row's
  own, so that outputs meet inputs; all samples of a row share it. Every item of a finished run is
  in one of both files.
- OpenAI's format has no place for thoughts. As SGLang and vLLM do, they are told as
  ``reasoning_content`` beside ``content``; in fine-tuning rows only where asked for.
- Messages are as they were sent. Where a few of many rows call tools, readers that infer columns
  from the first rows refuse them (`datasets` 5.2 does); SpecForge's shape is made for those.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from producer.export.rows import Spoken, conversation, per_turn

if TYPE_CHECKING:
    from common.records import Completion, Usage
    from producer.export.rows import Options


def message_rows(completion: Completion, options: Options) -> list[dict[str, Any]]:
    """Return the fine-tuning rows of one completion."""
    spoken = conversation(completion)
    each = per_turn(spoken) if options.per_turn else [spoken]
    return [{"messages": [_message(one, options) for one in row]} for row in each]


def _message(one: Spoken, options: Options) -> dict[str, Any]:
    made = dict(one.message)
    if made.get("role") != "assistant":
        return made
    if one.said is None:
        made.pop("reasoning_content", None)
        return made | {"weight": 0}
    if options.reasoning and one.said.reasoning_content is not None:
        made["reasoning_content"] = one.said.reasoning_content
    return made


def batch_rows(completion: Completion, options: Options) -> list[dict[str, Any]]:
    """Return the one output line of a completion: the answer to its last turn."""
    item = f"{options.run}-{completion.k}"
    message: dict[str, Any] = {"role": "assistant", "content": completion.content, "refusal": None}
    if options.reasoning and completion.reasoning_content is not None:
        message["reasoning_content"] = completion.reasoning_content
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": completion.finish_reason,
    }
    body = {
        "id": f"chatcmpl-{item}",
        "object": "chat.completion",
        "created": _unix(completion),
        "model": completion.model,
        "choices": [choice],
        "usage": _usage(completion.usage),
    }
    response = {"status_code": 200, "request_id": item, "body": body}
    return [_line(item, _custom_id(options, completion.row_id, completion.row), response, None)]


def error_line(
    options: Options, *, k: int, row: int, row_id: str | None, code: str, message: str
) -> dict[str, Any]:
    """Return the line of an item that has no output."""
    error = {"code": code, "message": message}
    return _line(f"{options.run}-{k}", _custom_id(options, row_id, row), None, error)


def _line(
    item: str, custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None
) -> dict[str, Any]:
    return {
        "id": f"batch_req_{item}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }


def _custom_id(options: Options, row_id: str | None, row: int) -> str:
    return row_id or f"{options.run}-{row}"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _unix(completion: Completion) -> int:
    """Return when the answer was there, in unix seconds; 0 where the record does not say."""
    try:
        return int(datetime.fromisoformat(completion.started).timestamp() + completion.seconds)
    except ValueError:
        return 0
