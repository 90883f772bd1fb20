"""How long rows are in tokens, and which leave no room for an answer.

The consumer refuses such a row by its engine's word; here it is found before a GPU-second is
spent, where the tokenizer is on this machine. Most rows need no tokenizer for that: their bytes
alone say that they fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.codec import dumps
from common.errors import EngineError
from common.model import locate_model
from common.tokens import Tokens, load_tokens, own_context
from common.turns import steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.records import Row, RunSettings

Messages = list[dict[str, Any]]

# A token is at least a byte of text, so bytes bound tokens from above, but for what the template
# adds (the longest preambles known have some 500 tokens) and for normalization, which may write
# other than ASCII letters out: three times the bytes at most (Unicode TR 15, NFC in UTF-8).
_TEMPLATE_TOKENS = 1024
_MESSAGE_TOKENS = 16
_GROWTH = 3
# The estimate: usual text has about four ASCII letters a token; scripts beyond it about 1.5.
_ASCII_A_TOKEN = 4.0
_OTHER_A_TOKEN = 1.5
_MARKS_A_MESSAGE = 6


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens of a row: of its ``first`` prompt, and the ``most`` that is known to be sent at once.

    The two differ in rows of several turns, whose later prompts hold what is yet to be generated.
    """

    first: int
    most: int


@dataclass(frozen=True, slots=True)
class Context:
    """The most tokens that prompt and answer may have together, and whose word that is."""

    tokens: int
    origin: str


def context_of(asked: int | None, model: str) -> Context | None:
    """Return the context that counts: the one asked for, else the model's own; None: not known."""
    if asked is not None:
        return Context(asked, f"--context {asked}")
    path = locate_model(model)
    own = own_context(path) if path is not None else None
    return Context(own, "the model itself") if own else None


def too_long(tokens: int, context: Context) -> str | None:
    """Return why a prompt is too long, with both numbers; None if an answer has room behind it."""
    if tokens < context.tokens:
        return None
    return (
        f"the prompt has {tokens:,} tokens, and prompt and answer together may have"
        f" {context.tokens:,} ({context.origin})"
    )


def prompts_of(messages: Messages, *, keep_answers: bool = False) -> list[Messages]:
    """Return what of a row is certain to be sent: its first prompt, and all of it without answers.

    The second is there only in rows of several turns; an empty answer stands for each of ours, so
    it is no longer than what will be sent. Where answers are kept, all of the row is one prompt.
    """
    due = steps(messages)
    if keep_answers or not due:
        return [messages]
    first = messages[: due[0].asked + 1]
    if len(due) == 1:
        return [first]
    whole: Messages = []
    taken = 0
    for step in due:
        whole += messages[taken : step.asked + 1]
        whole.append({"role": "assistant", "content": ""})
        taken = step.after
    return [first, whole[:-1]]


def estimate(messages: Messages) -> int:
    """Return about how many tokens a prompt has, by its letters alone; may be off by half."""
    text = "".join(str(message.get("content", "")) for message in messages)
    ascii_only = len(text.encode("ascii", "ignore"))
    other = len(text) - ascii_only
    marks = _MARKS_A_MESSAGE * len(messages)
    return round(ascii_only / _ASCII_A_TOKEN + other / _OTHER_A_TOKEN) + marks


def most_tokens(messages: Messages, data: bytes) -> int:
    """Return what a prompt cannot exceed, whatever the tokenizer; ``data`` is its JSON."""
    size = len(data) if data.isascii() else _GROWTH * len(data)
    return size + _TEMPLATE_TOKENS + _MESSAGE_TOKENS * len(messages)


class Counter:
    """Counts tokens of rows with the model's tokenizer."""

    def __init__(self, tokens: Tokens, *, thinking: bool | None, keep_answers: bool) -> None:
        self._tokens = tokens
        self._thinking = thinking
        self._keep_answers = keep_answers

    def sizes(self, rows: Sequence[Row]) -> list[Size | ValueError]:
        """Return the sizes of rows, or why the chat template refuses one."""
        prompts = [prompts_of(row.messages, keep_answers=self._keep_answers) for row in rows]
        flat = [prompt for of_row in prompts for prompt in of_row]
        counted = iter(self._tokens.counts(flat, thinking=self._thinking))
        return [_size([next(counted) for _ in of_row]) for of_row in prompts]


def _size(counts: Sequence[int | ValueError]) -> Size | ValueError:
    first = counts[0]
    if isinstance(first, ValueError):
        return first
    # A template may refuse the later turns with our empty answers: the first prompt is counted.
    return Size(first, max([first, *(n for n in counts[1:] if isinstance(n, int))]))


class LengthCheck:
    """Finds rows that are too long, with as little tokenizing as that takes.

    The tokenizer is loaded when the first row is in doubt. ``unchecked`` counts the rows whose
    check is left to the consumer, and ``why`` says what was missing here.
    """

    def __init__(
        self, model: str, context: Context, *, thinking: bool | None, keep_answers: bool = False
    ) -> None:
        self._model = model
        self._context = context
        self._thinking = thinking
        self._keep_answers = keep_answers
        self._counter: Counter | None = None
        self.unchecked = 0
        self.why = ""

    def doubt(self, row: Row) -> int:
        """Return 0 if a row's bytes alone say that it fits, else how many they are."""
        data = dumps(row.messages)
        return len(data) if most_tokens(row.messages, data) >= self._context.tokens else 0

    def refusals(self, rows: Sequence[Row]) -> list[str | None]:
        """Return for each row in doubt why it is too long, or None."""
        counter = self._loaded()
        if counter is None:
            self.unchecked += len(rows)
            return [None] * len(rows)
        return [self._refusal(size) for size in counter.sizes(rows)]

    def _refusal(self, size: Size | ValueError) -> str | None:
        if isinstance(size, ValueError):  # the consumer says the same of the whole row
            self.unchecked += 1
            self.why = self.why or str(size)
            return None
        return too_long(size.most, self._context)

    def _loaded(self) -> Counter | None:
        if self._counter is None and not self.why:
            try:
                path = locate_model(self._model)
                tokens = load_tokens(str(path) if path else self._model)
            except EngineError as error:
                self.why = " ".join(filter(None, (error.why or error.what, error.fix)))
            else:
                self._counter = Counter(
                    tokens, thinking=self._thinking, keep_answers=self._keep_answers
                )
        return self._counter


def length_check(asked: int | None, settings: RunSettings) -> LengthCheck | None:
    """Return the check for a run, or None where no limit is known on this machine."""
    context = context_of(asked, settings.model)
    if context is None:
        return None
    return LengthCheck(
        settings.model,
        context,
        thinking=settings.thinking,
        keep_answers=settings.keep_answers,
    )


def check_note(check: LengthCheck | None, model: str) -> str:
    """Return what must be said of a check once all rows were read; empty: they are all checked."""
    if check is None:
        return (
            f"how long prompts may be is not known here ({model} is not on this machine; or give"
            " --context): that check is left to the consumer."
        )
    if not check.unchecked:
        return ""
    return (
        f"{check.unchecked:,} rows may be too long; their check is left to the consumer"
        f" ({check.why})."
    )
