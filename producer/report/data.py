"""What a report says of a run: the schema of ``report --json``, and all that the page shows.

docs/report.md describes each field for those who read the JSON. Fields are only ever added; the
version changes when that is no longer possible. Times are UTC, ISO 8601; null means "not known".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

REPORT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Bin:
    """One bar: completions of ``above`` < tokens <= ``up_to``; the first bar includes 0."""

    above: int
    up_to: int
    completions: int
    cut: int  # of them: ended by their limit


@dataclass(frozen=True, slots=True)
class Distribution:
    """How long things are, in tokens. Percentiles are exact (nearest rank)."""

    completions: int
    tokens: int
    mean: float
    p50: int
    p90: int
    p99: int
    longest: int
    scale: str  # linear | log: how the bins are spaced
    bins: list[Bin]


@dataclass(frozen=True, slots=True)
class LimitShare:
    """One token limit, and how many committed completions were made under it."""

    max_tokens: int
    completions: int
    cut: int


@dataclass(frozen=True, slots=True)
class Limit:
    """Whether completions meet their token limit."""

    run_max_tokens: int | None  # as the run was told; null: what the context leaves
    cut: int  # committed with finish reason "length", and dead letters of class truncated
    share: float  # of all finished items
    limits: list[LimitShare]  # the commonest ones, by how often
    other_limits: int  # how many more there are
    lowest: int | None
    highest: int | None
    cut_lowest: int | None  # of the limits at which some were cut off
    cut_highest: int | None  # null: of one or more of them the limit is not known


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest completion, and which one it is (the first such)."""

    tokens: int
    k: int
    row_id: str | None
    cut: bool


@dataclass(frozen=True, slots=True)
class ClassCount:
    """One verdict: how many items are committed with it, and how many are dead by it."""

    verdict: str
    kept: int
    dead: int
    share: float  # of all finished items
    policy: str | None  # what the run does with the class; null: nothing, as with ok


@dataclass(frozen=True, slots=True)
class Example:
    """One item of a class that is not ok."""

    verdict: str
    kept: bool
    k: int
    row: int
    sample: int
    row_id: str | None
    tokens: int | None  # null: of a dead letter nothing is stored
    reason: str
    prompt: str | None = None  # the end of the last user message; only with --examples
    answer: str | None = None  # the end of the answer; likewise


@dataclass(frozen=True, slots=True)
class Failures:
    """What went wrong on the way."""

    tries_by_class: dict[str, int] | None  # failed tries; null: not known
    dead_from: str  # failed.jsonl | redis | unknown
    examples: list[Example]


@dataclass(frozen=True, slots=True)
class Thinking:
    """Thoughts against answers, in tokens, of the completions that have a thought."""

    completions: int
    thought_tokens: int
    answer_tokens: int
    share: float  # thought tokens of all tokens of these completions
    thought: Distribution | None  # null: no completion has one
    answer: Distribution | None


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of committed completions."""

    prompt: int
    completion: int
    cached: int
    reasoning: int


@dataclass(frozen=True, slots=True)
class Waste:
    """Work done and thrown away."""

    tokens: int | None  # generated and not stored: failed tries, doubles; null: not known
    share: float | None  # of all tokens generated
    retried: int  # committed completions that took more than one attempt


@dataclass(frozen=True, slots=True)
class WorkerSpeed:
    """What one worker did."""

    worker: str
    completions: int
    tokens: int
    busy_seconds: float  # at least one request under way
    idle_seconds: float  # between its first request and its last, without any
    tokens_per_second: float  # over the busy time
    in_flight: float  # mean number of requests under way while busy
    slow: bool  # below 80 % of the median worker
    series: list[float]  # tokens per second in each bin


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second over time; a completion's tokens are spread over its duration."""

    start: str | None
    bin_seconds: float
    bins: int
    total: list[float]
    workers: list[WorkerSpeed]  # by tokens, most first
    other_workers: int  # taken together in the last entry, because there are so many
    undated: int  # completions whose time cannot be: a clock was wrong


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU time and what it costs. One worker is one GPU; starts of engines are not in it."""

    gpu_seconds: float  # busy
    idle_seconds: float
    tokens_per_gpu_second: float | None
    price_per_gpu_hour: float | None
    cost: float | None
    cost_per_million_tokens: float | None


@dataclass(frozen=True, slots=True)
class Child:
    """A child run: what of this run was done again."""

    run: str
    parent: str
    redone: str  # the class
    items: int
    committed: int
    ok: int
    taken: int  # of its completions: those that count instead of their parent's
    lost: int = 0  # completions that its _SUCCESS counts and no part holds


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the items are. ``open`` counts all that are neither committed nor dead."""

    state: str  # finished | damaged | loading | open | paused | held | closed | cancelled | unknown
    items: int
    committed: int
    dead: int | None
    open: int | None
    in_stream: int | None  # generated, and not yet committed
    hold_reason: str
    lost: int = 0  # completions that _SUCCESS counts and no part holds


@dataclass(frozen=True, slots=True)
class OpenWith:
    """Lines to paste."""

    copy: str
    duckdb: str
    datasets: str
    verify: str


@dataclass(frozen=True, slots=True)
class Report:
    """All of it."""

    run: str
    store: str
    created: str
    made: str  # when this report was made
    source: str
    rows: int
    samples: int
    progress: Progress
    longest: Longest | None
    limit: Limit
    lengths: Distribution | None  # null: nothing is committed
    classes: list[ClassCount]
    thinking: Thinking
    tokens: Tokens
    throughput: Throughput
    failures: Failures
    waste: Waste
    cost: Cost
    engines: dict[str, int]
    models: dict[str, int]
    genq_versions: dict[str, int]
    settings: dict[str, Any]
    open_with: OpenWith
    children: list[Child] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what could not be read, and why
    version: int = REPORT_VERSION
