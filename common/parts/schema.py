"""The one schema of completions in storage, the same in every part and in both formats.

    k                  int64    the item: row * samples + sample
    row, sample        int64, int32
    row_id             string?  what the user called the row; in JSON lines "" instead of null
    messages           list of {role, content, raw}, as sent to the model; ``raw`` is "" for a plain
                       message, else the whole message as JSON (tool calls, content parts, names);
                       ``content`` then holds the text of it
    content            string   the answer
    reasoning_content  string?  what the model thought before it; likewise
    input_ids          list of int32, exactly what the model saw (before its last turn)
    output_ids         list of int32, exactly what the model said (in its last turn)
    turns              string   JSON of the turns before the last one that were generated, in order;
                       "[]" for most rows. Each has content, reasoning_content, input_ids,
                       output_ids, finish_reason, verdict, usage, seed and attempt, as above. A
                       trainer takes each as an example of its own (output_ids are learned,
                       input_ids are not): a later prompt holds no earlier thought
    finish_reason      string   stop | length
    verdict            string   ok, or the class of the fault that the run keeps
    usage              {prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens}, int64,
                       of the last turn; the thought's tokens are among the completion's
    seed               int64
    sampling           string   JSON of the sampling settings
    model, engine      string
    attempt            int32    1 is the first
    worker             string
    started            string   UTC, ISO 8601
    seconds            double
    metadata           string   JSON of the row's own extra fields
    version            int32    of this schema
    genq_version       string

``content`` and ``messages`` hold no thought of ours. A list of plain structs opens in DuckDB,
pandas and ``datasets`` as it is; rows of free-form messages would not, since one with tool calls
has another type than its neighbour, and ``turns``, empty in most parts, would have none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from common import codec
from common.build import build, refuse_newer
from common.cliutil import genq_version
from common.records import RESULT_VERSION, Completion

NULLABLE = ("row_id", "reasoning_content")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


_version = cache(genq_version)


def to_record(completion: Completion) -> dict[str, Any]:
    """Return a completion as a record of the schema.

    Raises:
        ValueError: a number does not fit its column, or something has no JSON form.
    """
    record: dict[str, Any] = {
        name: getattr(completion, name) for name in Completion.__dataclass_fields__
    }
    usage = completion.usage
    try:
        record["messages"] = [_pack(message) for message in completion.messages]
        record["usage"] = {name: getattr(usage, name) for name in usage.__dataclass_fields__}
        record["sampling"] = codec.dumps(completion.sampling).decode()
        record["metadata"] = codec.dumps(completion.metadata).decode()
        record["turns"] = codec.dumps(completion.turns).decode()
    except TypeError as error:
        raise ValueError(f"item {completion.k}: {error}") from error
    record["genq_version"] = _version()
    _check_numbers(record)
    return record


def from_record(record: dict[str, Any]) -> Completion:
    """Return the completion of a record.

    Raises:
        NewerVersionError: a newer sink wrote it.
        ValueError: it is not a record of the schema.
    """
    refuse_newer(record, "a completion", RESULT_VERSION)
    try:
        raw = dict(record)
        raw["messages"] = [_unpack(message) for message in record["messages"]]
        raw["metadata"] = codec.loads(record["metadata"])
        raw["sampling"] = codec.loads(record["sampling"])
        raw["turns"] = codec.loads(record.get("turns") or "[]")  # older parts have no such column
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a completion: {error!r}") from error
    return build(Completion, raw)


def from_json(text: bytes) -> Completion:
    """Return the completion that a consumer wrote as JSON.

    Raises:
        NewerVersionError: a newer consumer wrote it.
        ValueError: it is not one.
    """
    raw = codec.loads(text)
    refuse_newer(raw, "a completion", RESULT_VERSION)
    return build(Completion, raw)


def _pack(message: dict[str, Any]) -> dict[str, str]:
    role, content = message.get("role"), message.get("content")
    if isinstance(role, str) and isinstance(content, str) and len(message) == len(_PLAIN):
        return {"role": role, "content": content, "raw": ""}
    return {
        "role": role if isinstance(role, str) else "",
        "content": _text_of(content),
        "raw": codec.dumps(message).decode(),
    }


_PLAIN = ("role", "content")


def _text_of(content: Any) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _unpack(message: dict[str, str]) -> dict[str, Any]:
    if message["raw"]:
        return dict(codec.loads(message["raw"]))
    return {"role": message["role"], "content": message["content"]}


def _check_numbers(record: dict[str, Any]) -> None:
    """Refuse here what Parquet could not hold, so that both formats refuse the same."""
    for name in ("k", "row", "seed"):
        _within(record, name, _INT64_MAX)
    for name in ("sample", "attempt", "version"):
        _within(record, name, _INT32_MAX)
    for name in ("input_ids", "output_ids"):
        ids = record[name]
        if ids and (min(ids) < 0 or max(ids) > _INT32_MAX):
            raise ValueError(f"item {record['k']}: {name} holds a number outside [0, 2**31)")
    for name in record["usage"]:
        _within(record["usage"], name, _INT64_MAX)


def _within(record: dict[str, Any], name: str, limit: int) -> None:
    if not 0 <= record[name] <= limit:
        raise ValueError(f"{name} is {record[name]}, outside [0, {limit}]")
