"""A completion as a conversation: who said what, what the model said itself, and what it is called.

The foreign formats differ in names; what they need to know of a completion is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.turns import steps

if TYPE_CHECKING:
    from common.records import Completion, Turn

Message = dict[str, Any]


class UnfitError(Exception):
    """A completion that has no place in a format; the text is a reason, the same for all such."""


@dataclass(frozen=True, slots=True)
class Options:
    """How an export was asked for."""

    run: str
    samples: int  # of the run
    per_turn: bool = False  # a row for each generated turn instead of one for the conversation
    reasoning: bool = True  # thoughts are told, where the format has a place for them


@dataclass(frozen=True, slots=True)
class Spoken:
    """One message; ``said`` is the generated turn that it is, None for everybody else's."""

    message: Message
    said: Turn | Completion | None = None


def conversation(completion: Completion) -> list[Spoken]:
    """Return the whole conversation, the last answer included."""
    spoken = [Spoken(message) for message in completion.messages]
    asked = steps(completion.messages)[:-1]
    if len(asked) == len(completion.turns):
        for step, turn in zip(asked, completion.turns, strict=True):
            if step.after > step.asked + 1:
                at = step.after - 1
                spoken[at] = Spoken(completion.messages[at], turn)
    answer = {"role": "assistant", "content": completion.content}
    return [*spoken, Spoken(answer, completion)]


def per_turn(spoken: list[Spoken]) -> list[list[Spoken]]:
    """Return a conversation for each generated turn, which is its last message.

    The turns before it are history, and no longer count as generated: the model was shown them
    without their thoughts.
    """
    return [
        [*(Spoken(one.message) for one in spoken[:n]), last]
        for n, last in enumerate(spoken)
        if last.said is not None
    ]


def name_of(completion: Completion, options: Options, generation: int | None = None) -> str:
    """Return what an exported row is called: the row's own id, else run and row number.

    With several samples a row, and for single turns, their number is added.
    """
    name = completion.row_id or f"{options.run}-{completion.row}"
    if options.samples > 1:
        name += f"-{completion.sample}"
    return name if generation is None else f"{name}_gen{generation}"


def text_of(content: Any) -> str:
    """Return the text of a message's content.

    Raises:
        UnfitError: there is more in it than text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise UnfitError("a message holds more than text")
        texts.append(part["text"])
    return "".join(texts)
