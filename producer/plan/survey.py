"""`gen-producer plan`: what a load would find and cost, before anything is stored or spent.

One pass over the data set, in memory that does not grow with it. Rows are judged exactly as `load`
judges them; besides, each prompt is rendered and counted, so that the rows are known that would
only turn out at the engine.
"""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from common.codec import dumps
from common.turns import steps
from producer.load.lengths import Size, estimate, prompts_of, too_long
from producer.load.rows import canonical, line_of
from producer.plan.tally import EXAMPLES, Doubles, Histogram, Reasons
from producer.sources.chat import shape_of
from producer.sources.records import Fault, Place, RowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from common.records import Row, Sampling
    from producer.load.lengths import Context, Messages
    from producer.load.lengths import Counter as TokenCounter
    from producer.load.rows import Found, ReadOptions
    from producer.plan.tally import Repeats
    from producer.sources.records import Raw

BATCH_ROWS = 512
BATCH_BYTES = 4 * 2**20
_AHEAD = 2  # batches that are counted while the next is read
_PROGRESS_ROWS = 1000
_EXAMPLE_LETTERS = 400


@dataclass(slots=True)
class Shape:
    """One shape of rows: how many there are, and the first of them, cut short."""

    example: str
    place: Place
    rows: int = 0


class TooLong(NamedTuple):
    """A row that leaves no room for an answer."""

    place: Place
    tokens: int


@dataclass(slots=True)
class Survey:
    """What a pass over a data set found."""

    rows: int = 0  # that `load` takes
    read: int = 0  # all, those that cannot be used included
    ended: int = 0  # of those that cannot: ends of files that cannot be read on
    several_turns: int = 0
    answers: int = 0  # requests that one sample of every row takes
    max_tokens: int = 0  # the sum of the limits of all answers, where every one has a limit
    unlimited: int = 0  # answers without a limit
    cut_by_context: int = 0  # rows whose limit does not fit behind their prompt
    shapes: dict[str, Shape] = field(default_factory=dict)
    own_settings: Counter[str] = field(default_factory=Counter)  # rows that set each by themselves
    lengths: Histogram = field(default_factory=Histogram)  # of first prompts, in tokens
    too_long: int = 0
    too_long_first: list[TooLong] = field(default_factory=list)
    may_be_too_long: int = 0  # by the estimate, where no tokenizer is here
    refused: Reasons = field(default_factory=Reasons)  # what `load` refuses, but for length
    template: Reasons = field(default_factory=Reasons)  # what the model's chat template refuses
    doubles: Doubles = field(default_factory=Doubles)

    @property
    def bad(self) -> int:
        """How many rows `load` refuses."""
        return self.refused.total + self.too_long


class Surveyor:
    """Carries one pass out."""

    def __init__(
        self,
        options: ReadOptions,
        *,
        counter: TokenCounter | None,
        context: Context | None,
        sampling: Sampling,
    ) -> None:
        self._options = options
        self._counter = counter
        self._context = context
        self._sampling = sampling
        self._found = Survey()

    def survey(
        self,
        rows: Iterable[Raw | Fault],
        repeats: Repeats,
        *,
        progress: Callable[[int], None] = lambda _rows: None,
    ) -> Survey:
        """Read all rows and return what they are.

        Raises:
            InputError, UsageError, StoreError: a source cannot be read.
        """
        found = self._found
        for one, size in self._sized(map(self._judged, rows)):
            if self._options.limit is not None and found.rows >= self._options.limit:
                break
            found.read += 1
            if isinstance(one.row, Fault):
                found.refused.add(one.place, one.row.reason)
                found.ended += one.row.ends
            else:
                self._take(one, one.row, size, repeats)
            if found.read % _PROGRESS_ROWS == 0:
                progress(found.read)
        found.doubles = repeats.found()
        return found

    def _judged(self, raw: Raw | Fault) -> Found:
        one = canonical(raw, self._options)
        if not isinstance(one.row, Fault):
            try:
                line_of(one.row, self._options.limits.row_bytes)
            except RowError as error:
                return one._replace(row=Fault(one.place, str(error)))
        return one

    def _take(self, one: Found, row: Row, size: Size | ValueError | None, repeats: Repeats) -> None:
        found = self._found
        self._see_shape(one)
        if isinstance(size, ValueError):
            found.template.add(one.place, str(size))
        elif size is not None:
            if self._leaves_no_room(one, size):
                return
            found.lengths.add(size.first)
        found.rows += 1
        repeats.add(row.id, dumps(row.messages), one.place)
        answers = max(1, len(steps(row.messages)))
        found.answers += answers
        found.several_turns += answers > 1
        self._take_sampling(row, answers, size)

    def _leaves_no_room(self, one: Found, size: Size) -> bool:
        """Count a row that is too long; an estimate refuses none."""
        found = self._found
        if self._context is None or too_long(size.most, self._context) is None:
            return False
        if len(found.too_long_first) < EXAMPLES:
            found.too_long_first.append(TooLong(one.place, size.most))
        if self._counter is None:
            found.may_be_too_long += 1
            return False
        found.too_long += 1
        return True

    def _take_sampling(self, row: Row, answers: int, size: Size | ValueError | None) -> None:
        found = self._found
        for name in type(row.sampling).__dataclass_fields__:
            if getattr(row.sampling, name) is not None:
                found.own_settings[name] += 1
        limit = row.sampling.over(self._sampling).max_tokens
        if limit is None:
            found.unlimited += answers
            return
        found.max_tokens += limit * answers
        if self._context and isinstance(size, Size):
            found.cut_by_context += size.most + limit > self._context.tokens

    def _see_shape(self, one: Found) -> None:
        assert one.raw is not None
        name = self._options.shape or ("text" if self._options.text_field else None)
        if name is None:
            name = shape_of({key: item for key, item in one.raw.value.items() if item is not None})
        shape = self._found.shapes.get(name)
        if shape is None:
            text = dumps(one.raw.value)[: 4 * _EXAMPLE_LETTERS].decode(errors="ignore")
            shape = self._found.shapes[name] = Shape(text[:_EXAMPLE_LETTERS], one.place)
        shape.rows += 1

    def _sized(self, rows: Iterable[Found]) -> Iterator[tuple[Found, Size | ValueError | None]]:
        """Yield all rows in order with their sizes; batches are counted while others are read."""
        with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as thread:
            ahead: deque[tuple[list[Found], Future[list[Size | ValueError]]]] = deque()
            for batch in _batches(rows):
                good = [one.row for one in batch if not isinstance(one.row, Fault)]
                ahead.append((batch, thread.submit(self._sizes, good)))
                if len(ahead) > _AHEAD:
                    yield from _joined(*ahead.popleft())
            while ahead:
                yield from _joined(*ahead.popleft())

    def _sizes(self, rows: Sequence[Row]) -> list[Size | ValueError]:
        if self._counter is not None:
            return self._counter.sizes(rows)
        keep = self._options.keep_answers
        return [_estimated(prompts_of(row.messages, keep_answers=keep)) for row in rows]


def _estimated(prompts: list[Messages]) -> Size:
    counts = [estimate(prompt) for prompt in prompts]
    return Size(counts[0], max(counts))


def _batches(rows: Iterable[Found]) -> Iterator[list[Found]]:
    batch: list[Found] = []
    size = 0
    for one in rows:
        batch.append(one)
        if not isinstance(one.row, Fault):
            size += sum(len(str(message.get("content", ""))) for message in one.row.messages)
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _joined(
    batch: list[Found], sizes: Future[list[Size | ValueError]]
) -> Iterator[tuple[Found, Size | ValueError | None]]:
    counted = iter(sizes.result())
    for one in batch:
        yield one, None if isinstance(one.row, Fault) else next(counted)
