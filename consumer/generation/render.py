"""Conversations as the model sees them: which turns are ours to answer, and each one's prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from common.errors import EngineError
from common.turns import turns_to_answer
from consumer.generation.verdict import Thinking, opens_thought

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from consumer.engine.api import Renderer

TAIL_IDS = (
    5  # enough for an opened thought; short, so that it is the template's text and few differ
)
_TAILS = 64  # distinct endings remembered; a template has one or two

Message = dict[str, Any]
_HELLO: list[Message] = [{"role": "user", "content": "Hello."}]

log = structlog.get_logger()


@dataclass(slots=True)
class Conversation:
    """A row's messages with our answers put in, turn by turn, without their thoughts."""

    messages: list[Message]
    _points: list[int] = field(init=False)
    _sent: list[Message] = field(init=False)
    _taken: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._points = turns_to_answer(self.messages)
        self._sent = []
        self._advance()

    @property
    def open(self) -> bool:
        """Whether a turn is left to answer."""
        return bool(self._points)

    @property
    def last(self) -> bool:
        """Whether the turn to answer now is the last one."""
        return len(self._points) == 1

    @property
    def prompt(self) -> list[Message]:
        """The messages before the answer that is due now."""
        return list(self._sent)

    def answer(self, content: str) -> None:
        """Put in the answer to the turn that was due, and go on to the next."""
        self._sent.append({"role": "assistant", "content": content})
        self._points.pop(0)
        self._advance()

    def _advance(self) -> None:
        if self._points:
            end = self._points[0] + 1
            self._sent.extend(self.messages[self._taken : end])
            self._taken = end


class Prompts:
    """The model's renderer, and whether its template leaves a thought open."""

    def __init__(self, renderer: Renderer, thinking: Thinking | None = None) -> None:
        self._renderer = renderer
        self._thinking = thinking or Thinking()
        self._tails: dict[tuple[int, ...], Thinking] = {}

    async def warm(self) -> None:
        """Load tokenizer and template now: that takes seconds, in which little else runs.

        Never raises: what is wrong with them comes out with the first item.
        """
        try:
            await self.thinking(await self.render(_HELLO, thinking=None))
        except (ValueError, EngineError) as error:
            log.warning("the chat template refuses even a greeting", why=str(error))

    async def render(
        self, messages: Sequence[Mapping[str, Any]], *, thinking: bool | None
    ) -> list[int]:
        """Return the token ids of a prompt.

        Raises:
            ValueError: the template refuses these messages (a fault of the row).
            EngineError: the engine that renders could not be asked.
        """
        return await self._renderer.render(messages, thinking=thinking)

    async def thinking(self, input_ids: Sequence[int]) -> Thinking:
        """Return how an answer to this prompt marks its thought."""
        tail = tuple(input_ids[-TAIL_IDS:])
        known = self._tails.get(tail)
        if known is None:
            text = await self._renderer.decode(tail)
            marks = self._thinking
            known = Thinking(marks.start, marks.end, opened=opens_thought(text, marks))
            if len(self._tails) >= _TAILS:
                self._tails.clear()
            self._tails[tail] = known
        return known

    async def text(self, output_ids: Sequence[int], given: str | None) -> str:
        """Return an answer's text: the engine's own, or else decoded here."""
        return given if given is not None else await self._renderer.decode(output_ids)
