"""A row's conversation as it grows: its messages, with our answers in the places that ask for them.

No prompt ever holds a thought of an earlier turn: of our answers only the content goes back in,
and what the row's own assistant messages carry of theirs is taken off.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from common.turns import Step, steps
from consumer.generation.thinking import THINK, Marks, Parts, own_answer, without_thought

Message = dict[str, Any]


@dataclass(slots=True)
class Conversation:
    """A row's messages with answers put in, turn by turn.

    ``own``: the turns are those that the row brings an answer for, and others are left as they are.
    """

    messages: list[Message]
    marks: Marks = THINK
    own: bool = False
    _steps: list[Step] = field(init=False)
    _sent: list[Message] = field(init=False)
    _taken: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._steps = [
            step for step in steps(self.messages) if not self.own or step.after > step.asked + 1
        ]
        self._sent = []
        self._advance()

    @property
    def open(self) -> bool:
        """Whether a turn is left to answer."""
        return bool(self._steps)

    @property
    def left(self) -> int:
        """How many turns are left to answer."""
        return len(self._steps)

    @property
    def prompt(self) -> list[Message]:
        """The messages before the answer that is due now."""
        return list(self._sent)

    @property
    def brought(self) -> Parts:
        """The answer that the row brings for the turn that is due now."""
        step = self._steps[0]
        return own_answer(self.messages[step.asked + 1 : step.after], self.marks)

    def answer(self, content: str) -> None:
        """Put in the answer to the turn that was due, and go on to the next."""
        self._sent.append({"role": "assistant", "content": content})
        self._taken = self._steps.pop(0).after
        self._advance()

    def _advance(self) -> None:
        if self._steps:
            end = self._steps[0].asked + 1
            some = self.messages[self._taken : end]
            self._sent.extend(without_thought(message, self.marks) for message in some)
            self._taken = end
