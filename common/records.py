"""The records that travel: a row to be answered, a run, a completion, a failure.

All are frozen, slotted dataclasses that :mod:`common.codec` writes as JSON. Fields are only ever
added, with a default, so an older reader and a newer writer understand each other; the version
numbers change when that is no longer possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common.ids import Epoch, Item, RunName, Token, WorkerName

RUN_VERSION = 1
RESULT_VERSION = 1


class Verdict(StrEnum):
    """What became of one try at an item (design: section "What counts as success")."""

    OK = "ok"
    # Row faults: the item is charged an attempt, or the run's policy keeps the completion.
    EMPTY = "empty"
    THOUGHT_ONLY = "thought_only"
    TRUNCATED = "truncated"
    LOOPING = "looping"
    CONTENT_ERROR = "content_error"
    TOO_LONG = "too_long"
    INPUT_TRUNCATED = "input_truncated"
    BAD_ROW = "bad_row"
    # Engine faults: never charged to the item.
    ENGINE_DOWN = "engine_down"
    BUSY = "busy"
    TIMEOUT = "timeout"
    ABORTED = "aborted"
    MALFORMED = "malformed"


ENGINE_FAULTS = frozenset(
    {Verdict.ENGINE_DOWN, Verdict.BUSY, Verdict.TIMEOUT, Verdict.ABORTED, Verdict.MALFORMED}
)
ROW_FAULTS = frozenset(Verdict) - ENGINE_FAULTS - {Verdict.OK}


class Policy(StrEnum):
    """What a run does with a completion of a row-fault class."""

    KEEP = "keep"  # commit it, flagged by its verdict
    RETRY = "retry"  # again with the next seed, dead-lettered when the attempts are used up
    DEAD = "dead"  # dead-letter at once


DEFAULT_POLICIES: dict[Verdict, Policy] = {
    Verdict.EMPTY: Policy.RETRY,
    Verdict.THOUGHT_ONLY: Policy.RETRY,
    Verdict.TRUNCATED: Policy.KEEP,
    Verdict.LOOPING: Policy.RETRY,
    Verdict.CONTENT_ERROR: Policy.RETRY,
    Verdict.TOO_LONG: Policy.DEAD,
    Verdict.INPUT_TRUNCATED: Policy.RETRY,
    Verdict.BAD_ROW: Policy.DEAD,
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of a run, or of one row where it differs. None: the engine's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None

    def over(self, other: Sampling) -> Sampling:
        """Return these settings, with ``other``'s where these are None."""
        return Sampling(
            **{
                name: mine if (mine := getattr(self, name)) is not None else getattr(other, name)
                for name in self.__dataclass_fields__
            }
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One row in its canonical form: a line of a prompt shard.

    A row with several user turns is answered turn by turn; answers that it brings along are
    replaced (:mod:`common.turns`), or are what is wanted, where the run keeps answers.
    """

    i: int
    messages: list[dict[str, Any]]
    id: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run was told: equal settings and equal rows make the same run."""

    model: str  # name or path, as the user gave it; compared by its last path component
    model_fingerprint: str  # of tokenizer and template; "" where the producer could not see them
    samples: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    thinking: bool | None = None  # None: as the chat template does by itself
    max_attempts: int = 3
    policies: dict[str, str] = field(
        default_factory=lambda: {str(k): str(v) for k, v in DEFAULT_POLICIES.items()}
    )
    request_seconds: float = 3600.0  # longest a request may take
    stall_seconds: float = 300.0  # longest an engine may give no new token
    retry_max_tokens: int | None = None  # the limit of tries after the first; None: as the first
    keep_answers: bool = False  # nothing is generated: the rows' own answers are tokenized
    reproducible: bool = False  # only engines that give equal tokens for equal seeds may serve it
    canary_rows: int = 200  # how many completions, the first handed out, are watched; 0: none
    canary_faults: float = 0.1  # the share of bad ones that holds the run; 0: none does
    canary_truncated: float = 0.5  # the share of those cut off that does; 0: none does


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One prompt shard: rows ``[first_row, first_row + rows)``."""

    name: str
    first_row: int
    rows: int
    sha256: str  # of the uncompressed lines


@dataclass(frozen=True, slots=True)
class RunManifest:
    """run.json: what a run is. Written once, after all shards, before any id is enqueued."""

    run: RunName
    settings: RunSettings
    fingerprint: str  # of all rows, in order: sha256 over the shards' digests
    rows: int
    shard_rows: int
    shards: list[ShardInfo]
    created: str  # UTC, ISO 8601
    source: str
    genq_version: str
    version: int = RUN_VERSION
    # Of a child run, which redoes items of another: its item j is the j-th of `parent_items`.
    parent: str = ""
    parent_fingerprint: str = ""
    parent_reason: str = ""  # the verdict that its parent's completions of them have
    parent_items: str = ""  # a bitmap, as `common.family` packs it

    @property
    def items(self) -> int:
        """How many completions the run has to end with, dead letters included."""
        return self.rows * self.settings.samples


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one turn: the engine's, and how many of its output ids are the thought's."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0  # of the output, the marks around the thought included


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered turn of a conversation: exactly what the model saw and said then."""

    content: str
    reasoning_content: str | None
    input_ids: list[int]
    output_ids: list[int]
    finish_reason: str  # stop | length
    verdict: str
    usage: Usage
    seed: int
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Completion:
    """One stored completion: exactly what the model saw and said.

    Of a row with several user turns these fields are the last turn's, and ``turns`` holds the
    earlier ones. Each turn is an example of its own, since the model never saw an earlier thought
    again: learn ``output_ids`` after ``input_ids``, which are masked (:attr:`examples`).
    ``verdict`` is that of the last turn, or else of the last earlier one that is not ``ok``.
    """

    k: Item
    row: int
    sample: int
    row_id: str | None
    messages: list[dict[str, Any]]  # as sent, earlier generated turns included
    content: str
    reasoning_content: str | None
    input_ids: list[int]
    output_ids: list[int]
    finish_reason: str  # stop | length
    verdict: str
    usage: Usage
    seed: int
    sampling: Sampling
    model: str
    engine: str  # name and version: ``sglang 0.5.17``
    attempt: int  # 1 is the first
    worker: str
    started: str  # UTC, ISO 8601
    seconds: float  # from the request's start to its end
    metadata: dict[str, Any] = field(default_factory=dict)
    version: int = RESULT_VERSION
    turns: list[Turn] = field(default_factory=list)

    @property
    def examples(self) -> list[tuple[list[int], list[int]]]:
        """What a trainer learns from: (ids to mask, ids to learn) of every turn, in order."""
        earlier = [(turn.input_ids, turn.output_ids) for turn in self.turns]
        return [*earlier, (self.input_ids, self.output_ids)]


@dataclass(frozen=True, slots=True)
class Leased:
    """One delivery: the right to work on an item until its lease ends."""

    item: Item
    token: Token
    attempt: int  # 1 is the first
    delivery: int  # 1 is the first
    deaths: int  # engine deaths that the item was in; from three on it is run alone


@dataclass(frozen=True, slots=True)
class Finished:
    """What a consumer hands over for one item: the encoded completion and its figures."""

    item: Item
    token: Token
    verdict: Verdict
    payload: bytes  # zstd of the completion's JSON
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # of the prompt's, those that the engine did not read again


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one try at an item failed."""

    item: Item
    token: Token
    verdict: Verdict
    text: str  # cut to 2 kB by the queue
    charged: bool  # an attempt is used up
    final: bool = False  # dead-letter now, whatever attempts are left
    engine_died: bool = False
    alone: bool = False  # the item was the engine's only one
    completion_tokens: int = 0  # generated and thrown away


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One result in the stream, not yet committed."""

    entry_id: str
    item: Item
    payload: bytes


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What Redis knows of a run, as services need it."""

    run: RunName
    epoch: Epoch
    state: str  # loading | open | paused | held | closed | cancelled
    priority: int
    items: int
    fingerprint: str
    model: str
    model_fingerprint: str
    created: float  # unix s
    hold_reason: str = ""
    settings: str = ""  # digest of all settings and the number of items; "": not known
    store: str = ""  # URL of the object storage that holds it; "": not known
    closing: str = ""  # names the last time that it was closed, if it ever was


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who leases: written into the holder field and RQ's worker record."""

    name: WorkerName
    hostname: str
    pid: int
