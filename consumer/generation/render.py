"""From messages to token ids and back: the model's own template, tokenizer and thought marks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from common.errors import EngineError
from common.tokens import THINKING_SWITCHES
from consumer.generation.thinking import (
    FAMILIES,
    THINK,
    Marks,
    Parts,
    Thinking,
    cut_ids,
    family_by_template,
    find,
    opens_thought,
    split_thought,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from consumer.engine.api import Answer, Renderer
    from consumer.generation.thinking import Cut

TAIL_IDS = (
    5  # enough for an opened thought; short, so that it is the template's text and few differ
)
_TAILS = 64  # distinct endings remembered; a template has one or two
_END_IDS = 3  # a turn's end token stands so near behind its text

Message = dict[str, Any]
_HELLO: list[Message] = [{"role": "user", "content": "Hello."}]
_WORD = "zebra"

log = structlog.get_logger()


class Prompts:
    """The model's renderer, and how the model marks its thoughts."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._marks: Marks | None = None
        self._plain = Thinking()  # of a prompt that opens no thought
        self._tails: dict[tuple[int, ...], Thinking] = {}
        self._end: list[int] | None = None
        self._deaf = False  # the template has no switch for thinking

    async def warm(self) -> None:
        """Load tokenizer and template now: that takes seconds, in which little else runs.

        What is wrong with the template comes out with the first item.

        Raises:
            EngineError: nothing of this model can be rendered here.
        """
        await self._renderer.load()
        try:
            await self.thinking(await self.render(_HELLO, thinking=None))
        except (ValueError, EngineError) as error:
            log.warning("the chat template refuses even a greeting", why=str(error))

    async def render(
        self, messages: Sequence[Mapping[str, Any]], *, thinking: bool | None
    ) -> list[int]:
        """Return the token ids of a prompt. A switch that the template does not know is said once.

        Raises:
            ValueError: the template refuses these messages (a fault of the row).
            EngineError: the engine that renders could not be asked.
        """
        if thinking is not None and self._deaf:
            self._deaf = False
            log.warning(
                "the chat template knows no switch for thinking: the model does as it always does",
                asked="--thinking" if thinking else "--no-thinking",
            )
        return await self._renderer.render(messages, thinking=thinking)

    async def marks(self) -> Marks:
        """Return how the model's family marks thoughts; raises EngineError as :meth:`render`."""
        if self._marks is None:
            template = await self._renderer.template()
            self._deaf = bool(template) and not any(name in template for name in THINKING_SWITCHES)
            marks = family_by_template(template) or await self._by_tokenizer() or THINK
            start, end = await self._ids(marks.start), await self._ids(marks.end)
            self._plain = Thinking(marks.start, marks.end)
            if start and end:
                close = await self._ids(marks.close) if marks.close else ()
                self._plain = replace(self._plain, start_ids=start, close_ids=close, end_ids=end)
            self._marks = marks
        return self._marks

    async def thinking(self, input_ids: Sequence[int]) -> Thinking:
        """Return how an answer to this prompt marks its thought."""
        await self.marks()
        tail = tuple(input_ids[-TAIL_IDS:])
        known = self._tails.get(tail)
        if known is None:
            known = replace(self._plain, opened=await self._opened(tail))
            if len(self._tails) >= _TAILS:
                self._tails.clear()
            self._tails[tail] = known
        return known

    async def parts(self, answer: Answer, thinking: Thinking) -> Parts:
        """Return an answer's thought and content, and how many of its tokens are the thought's.

        Raises:
            EngineError: the engine that decodes could not be asked.
        """
        ids, given = answer.output_ids, answer.text
        if not thinking.end_ids:
            return await self._parts_of_text(ids, given, thinking)
        cut = cut_ids(ids, thinking)
        lead = cut.thought - len(thinking.start_ids) if cut else 0
        if cut is None or (lead > 0 and (await self._renderer.decode(ids[:lead])).strip()):
            return Parts(None, await self._text(ids, given))
        if given is not None and thinking.end in given:  # these marks are not left out of texts
            parts = split_thought(given, thinking)
            if parts.reasoning is not None:
                return replace(parts, reasoning_tokens=cut.answer)
        thought = (await self._renderer.decode(ids[cut.thought : cut.end])).strip()
        if not cut.closed:
            return Parts(thought, "", closed=False, reasoning_tokens=len(ids))
        content = await self._behind(ids, given, cut)
        none = not thought and not cut.thought and not thinking.opened
        return Parts(None if none else thought, content, reasoning_tokens=cut.answer)

    async def written(self, brought: Parts, thinking: Thinking) -> list[int]:
        """Return an answer that nobody generated as the ids that the model would have said.

        Raises:
            EngineError: the engine that tokenizes could not be asked.
        """
        marks = await self.marks()
        text = marks.written(brought.reasoning, brought.content, opened=thinking.opened)
        if self._end is None:
            self._end = await self._end_of_turn()
        return [*await self._renderer.encode(text), *self._end]

    async def _text(self, ids: Sequence[int], given: str | None) -> str:
        return given if given is not None else await self._renderer.decode(ids)

    async def _behind(self, ids: Sequence[int], given: str | None, cut: Cut) -> str:
        """Return the text behind a thought: the engine's own, which may end before a stop word."""
        if given is not None:
            head = await self._renderer.decode(ids[: cut.answer])
            if given.startswith(head):
                return given[len(head) :].lstrip("\n")
        return (await self._renderer.decode(ids[cut.answer :])).lstrip("\n")

    async def _parts_of_text(
        self, ids: Sequence[int], given: str | None, thinking: Thinking
    ) -> Parts:
        parts = split_thought(await self._text(ids, given), thinking)
        if parts.reasoning is None:
            return parts
        if not parts.closed:
            return replace(parts, reasoning_tokens=len(ids))
        low, high = 0, len(ids)  # the shortest beginning that holds the closing mark
        while low < high:
            middle = (low + high) // 2
            if thinking.end in await self._renderer.decode(ids[:middle]):
                high = middle
            else:
                low = middle + 1
        return replace(parts, reasoning_tokens=low)

    async def _opened(self, tail: Sequence[int]) -> bool:
        plain = self._plain
        if not plain.end_ids:
            return opens_thought(await self._renderer.decode(tail), plain)
        begins = max(
            (n for n in range(len(tail)) if find(tail[n:], plain.start_ids) == 0), default=-1
        )
        if begins < 0:
            return False
        rest = tail[begins + len(plain.start_ids) :]
        return find(rest, plain.end_ids) < 0 and not (await self._renderer.decode(rest)).strip()

    async def _by_tokenizer(self) -> Marks | None:
        for marks in FAMILIES:
            if len(await self._renderer.encode(marks.end)) == 1:
                return marks
        return None

    async def _ids(self, mark: str) -> tuple[int, ...]:
        """Return the ids of a mark if it is always these; else none: it is text like any other."""
        ids = tuple(await self._renderer.encode(mark))
        own = len(ids) == 1 or (ids and not await self._renderer.decode(ids[:1]))
        return ids if own else ()

    async def _end_of_turn(self) -> list[int]:
        """Return the token that ends an assistant's turn, as the template writes it; else none."""
        talk = [*_HELLO, {"role": "assistant", "content": _WORD}, *_HELLO]
        try:
            ids = await self.render(talk, thinking=None)
        except ValueError:
            return []
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if _WORD in await self._renderer.decode(ids[:middle]):
                high = middle
            else:
                low = middle + 1
        for one in ids[low : low + _END_IDS]:
            if not await self._renderer.decode([one]):
                return [one]
        return []
