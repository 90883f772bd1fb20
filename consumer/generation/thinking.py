"""Thought and answer apart: how each model family marks its thoughts, in text and in token ids.

A family is known by its chat template, or else by its tokenizer. Where a mark is a token of its
own, answers are taken apart by their token ids: such marks are often control tokens, which
decoding leaves out, so that no text would show them. Pure, but for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Message = Mapping[str, Any]

LEAD_IDS = 3  # blank tokens that may stand before the mark that opens a thought
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")  # of messages, as people have them


@dataclass(frozen=True, slots=True)
class Marks:
    """How a family marks a thought: ``start`` thought ``close`` ``end`` answer.

    ``close`` is there where the thought ends earlier than the answer begins. ``lead``, ``gap`` and
    ``bare`` are how a whole answer is written: around the thought, before the answer, and before
    an answer without a thought. ``sign``: what in a chat template shows the family.
    """

    family: str
    start: str = "<think>"
    end: str = "</think>"
    close: str = ""
    lead: str = ""
    gap: str = ""
    bare: str = ""
    sign: str = ""

    def written(self, thought: str | None, answer: str, *, opened: bool) -> str:
        """Return an answer as the model would have said it; ``opened``: the prompt did that."""
        if thought is None and not opened:
            return self.bare + answer
        said = f"{'' if opened else self.start + self.lead}{(thought or '').strip()}{self.lead}"
        return f"{said}{self.close}{self.end}{self.gap}{answer}"


# From the chat templates of the models. The last one, with the most followers, stands for all
# that is unknown: a model that does not think never writes its marks.
FAMILIES = (
    Marks(  # gpt-oss: thought and answer are messages of their own
        "harmony",
        start="<|channel|>analysis<|message|>",
        close="<|end|><|start|>assistant",
        end="<|channel|>final<|message|>",
        bare="<|channel|>final<|message|>",
        sign="<|channel|>",
    ),
    Marks("mistral", start="[THINK]", end="[/THINK]"),
    Marks(
        "cohere",
        start="<|START_THINKING|>",
        end="<|END_THINKING|>",
        gap="<|START_RESPONSE|>",
        bare="<|START_RESPONSE|>",
    ),
    Marks("seed", start="<seed:think>", end="</seed:think>"),
    Marks("kimi", start="◁think▷", end="◁/think▷"),
    Marks("exaone", start="<thought>", end="</thought>", lead="\n", gap="\n\n"),
    Marks("think", lead="\n", gap="\n\n"),  # Qwen, DeepSeek, GLM, MiniMax, Nemotron, SmolLM3, ...
)
THINK = FAMILIES[-1]


@dataclass(frozen=True, slots=True)
class Thinking:
    """How answers mark their thoughts; ``opened``: the prompt already began one.

    The ids are those of the marks, where these are tokens of their own; else empty.
    """

    start: str = THINK.start
    end: str = THINK.end
    opened: bool = False
    start_ids: tuple[int, ...] = ()
    close_ids: tuple[int, ...] = ()
    end_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """An answer, taken apart. ``closed``: its thought, if there is one, came to its end."""

    reasoning: str | None  # None where there was no thought at all
    content: str
    closed: bool = True
    reasoning_tokens: int = 0  # of the output ids, marks included


@dataclass(frozen=True, slots=True)
class Cut:
    """Where in the output ids a thought stands: ``[thought, end)``; the answer from ``answer``."""

    thought: int
    end: int
    answer: int
    closed: bool


def family_by_template(template: str) -> Marks | None:
    """Return the family that a chat template is of, if it shows."""
    for one in FAMILIES:
        if any(mark in template for mark in ([one.sign] if one.sign else [one.start, one.end])):
            return one
    return None


def find(ids: Sequence[int], mark: Sequence[int], start: int = 0) -> int:
    """Return where ``mark`` begins in ``ids``, or -1; an empty one is nowhere."""
    if not mark:
        return -1
    wanted = list(mark)
    for n in range(start, len(ids) - len(wanted) + 1):
        if ids[n] == wanted[0] and list(ids[n : n + len(wanted)]) == wanted:
            return n
    return -1


def cut_ids(ids: Sequence[int], thinking: Thinking) -> Cut | None:
    """Return where the thought of an answer stands, or None if it has none.

    The marks must be known as ids. Whether what stands before the opening mark is blank, the
    caller has to look at: ``thought`` is then behind up to :data:`LEAD_IDS` tokens and the mark.
    """
    begins = find(ids, thinking.start_ids)
    began = 0 <= begins <= LEAD_IDS
    thought = begins + len(thinking.start_ids) if began else 0
    end = find(ids, thinking.end_ids, thought)
    if end >= 0 and (began or thinking.opened or not 0 <= begins < end):
        closes = find(ids[:end], thinking.close_ids, thought)
        return Cut(
            thought, closes if closes >= 0 else end, end + len(thinking.end_ids), closed=True
        )
    if began or thinking.opened:
        return Cut(thought, len(ids), len(ids), closed=False)
    return None


def split_thought(text: str, thinking: Thinking) -> Parts:
    """Return the parts of an answer's text; its tokens are not counted.

    A closing mark without an opening one means that the prompt had opened the thought.
    """
    body = text.lstrip()
    began = body.startswith(thinking.start)
    if began:
        body = body[len(thinking.start) :]
    thought, mark, rest = body.partition(thinking.end)
    if mark and (began or thinking.opened or thinking.start not in thought):
        return Parts(thought.strip(), rest.lstrip("\n"))
    if began or thinking.opened:
        return Parts(body.strip(), "", closed=False)
    return Parts(None, text)


def opens_thought(prompt_tail: str, thinking: Thinking) -> bool:
    """Return whether a prompt that ends with ``prompt_tail`` leaves a thought open."""
    return prompt_tail.rstrip().endswith(thinking.start)


def own_answer(messages: Sequence[Message], marks: Marks) -> Parts:
    """Return an answer that a row brings along: its messages' texts, and the thought it has."""
    texts = [message.get("content") for message in messages]
    whole = "\n\n".join(text for text in texts if isinstance(text, str))
    for one in (marks, THINK):
        parts = split_thought(whole, Thinking(one.start, one.end))
        if parts.reasoning is not None:
            return parts
    fields = (message.get(key) for message in messages for key in _THOUGHT_KEYS)
    thought = next((text for text in fields if isinstance(text, str) and text), None)
    return Parts(thought, whole)


def without_thought(message: Message, marks: Marks) -> dict[str, Any]:
    """Return a message as later prompts may hold it: an assistant's without its thought."""
    if message.get("role") != "assistant":
        return dict(message)
    plain = {name: value for name, value in message.items() if name not in _THOUGHT_KEYS}
    if isinstance(plain.get("content"), str):
        plain["content"] = own_answer([plain], marks).content
    return plain
