"""A data set of everything at once: each shape of a row, odd ids and texts, and what is refused.

Answers are cut short by the run's limit on purpose; where a row has a limit and stop words of its
own it can end by itself.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT = 1024  # of the engine
LOADED_CONTEXT = 8192  # more than the engine takes: what is between is found by the consumer
ODD = "line\u2028next \U0001f600 e\u0301 \u202e\u0085 tab\t"
OWN = {"temperature": 0, "stop": [".", ",", " "], "max_tokens": 40}
_IMAGE = {"type": "image_url", "image_url": {"url": "http://example.org/x.png"}}
_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}

GOOD: list[dict[str, Any] | str] = [
    {
        "custom_id": "batch",
        "body": {"max_tokens": 4, "messages": [{"role": "user", "content": "Name an ocean."}]},
    },
    {
        "id": "system",
        "messages": [
            {"role": "system", "content": "Answer in one word."},
            {"role": "user", "content": "Name a fruit."},
        ],
    },
    {
        "id": 7000,
        "conversations": [
            {"from": "human", "value": "Say hi."},
            {"from": "gpt", "value": "An answer that is replaced"},
            {"from": "human", "value": "Again."},
        ],
        "source": "chats",
    },
    {"id": 1.5, "turns": ["Name a colour.", "And another one."], "category": "colours", **OWN},
    {"id": True, "prompt": "Count to three.", **OWN},
    {"id": ["a", 1], "text": "The sky is"},
    {"id": {"k": 1}, "prompt": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    {"prompt": "This row has no id at all."},
    {"id": "twice", "prompt": "The first with this id."},
    {"id": "twice", "prompt": "The second with this id."},
    {"id": "equal", "prompt": "An equal row."},
    {"id": "equal", "prompt": "An equal row."},
    {"id": ODD, "prompt": ODD, "note": ODD},
    '{"id":"half","prompt":"half \\ud83d an emoji"}',
    {
        "id": "own",
        "messages": [
            {"role": "user", "content": "Say something."},
            {"role": "assistant", "content": "The row's own answer"},
        ],
        "seed": 11,
    },
    {"id": "sampled", "prompt": "Tell me a story.", "temperature": 1.0, "top_p": 0.9, "top_k": 20},
    {
        "id": "tool",
        "messages": [
            {"role": "user", "content": "What is the weather?"},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "Sunny."},
        ],
    },
    {"id": "zero", "prompt": "A zero byte: \u0000."},
    {"id": "marks", "prompt": "Marks </think> and [INST] mean nothing here.", **OWN},
    {"id": "long", "prompt": "word " * 1500},
]
LONG = len(GOOD) - 1
REFUSED: list[dict[str, Any] | str] = [
    {"prompt": 17},
    {"messages": []},
    {"messages": [{"role": "wizard", "content": "x"}]},
    {"messages": [{"role": "user", "content": [_IMAGE]}]},
    "not json",
    '{"prompt":"x","score":NaN}',
    {"prompt": "word " * 10_000},
]


def write_mixture(path: Path, *, copies: int = 1) -> int:
    """Write the good rows so often, the refused ones among them; return how many rows are good.

    With a BOM, Windows' line ends and blank lines.
    """
    rows = [*GOOD[:7], *REFUSED, *GOOD[7:], *GOOD * (copies - 1)]
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    lines.insert(3, "")
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")
    return len(GOOD) * copies
