"""What the committed parts say, gathered record by record. Pure; memory does not grow with rows."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, Any

from common.build import refuse_newer
from common.codec import loads
from common.records import RESULT_VERSION, Verdict
from producer.report.data import (
    Example,
    Limit,
    LimitShare,
    Longest,
    Thinking,
    Throughput,
    Tokens,
    WorkerSpeed,
)
from producer.report.lengths import Lengths
from producer.report.timeline import OTHERS, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from producer.report.timeline import Worker

# The columns that a survey reads: a few hundred bytes a completion.
COLUMNS = (
    "k",
    "row",
    "sample",
    "row_id",
    "finish_reason",
    "verdict",
    "usage",
    "turns",
    "sampling",
    "model",
    "engine",
    "attempt",
    "worker",
    "started",
    "seconds",
    "version",
    "genq_version",
)
EXAMPLES = 3  # of each class
SERIES_BINS = 144
_LIMITS_SHOWN = 3
_LIMITS_KEPT = 10_000
_SLOW_SHARE = 0.8  # of the median worker's rate, as `status` has it
_CUT = "length"
_NO_TURNS = "[]"
_LIFE = re.compile(r"(-gpu\d+)-\d+-[0-9a-f]{4}$")  # see worker_name of consumer/start.py


@dataclass(frozen=True, slots=True)
class Kept:
    """An example of a committed completion that is not ok, and the part that it lies in."""

    example: Example
    part: str


class Survey:
    """Takes records of parts (see `COLUMNS`), and says what they amount to.

    ``earliest`` and ``latest`` (unix time) bound what a completion's start may be.
    """

    def __init__(self, *, earliest: float, latest: float) -> None:
        self.verdicts: Counter[str] = Counter()
        self.engines: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()
        self.longest: Longest | None = None
        self.cut = self.retried = self.undated = 0
        self.examples: dict[str, list[Kept]] = {}
        self.lengths, self.thoughts, self.answers = Lengths(), Lengths(), Lengths()
        self.timeline = Timeline()
        self._tokens: Counter[str] = Counter()
        self._thinking: Counter[str] = Counter()
        self._limits: Counter[int] = Counter()
        self._cut_at: Counter[int] = Counter()
        self._window = earliest, latest

    def take(self, records: Iterable[dict[str, Any]], part: str) -> None:
        """Count the completions of one part.

        Raises:
            ValueError: one is damaged, or of a newer version.
        """
        for record in records:
            refuse_newer(record, "a completion", RESULT_VERSION)
            self._count(record, part)

    def _count(self, record: dict[str, Any], part: str) -> None:
        """Count one completion: of a conversation all tokens; its length is its longest turn's."""
        usages, cut = [record["usage"]], record["finish_reason"] == _CUT
        if (turns := record.get("turns") or _NO_TURNS) != _NO_TURNS:  # older parts have no such
            earlier = loads(turns)
            usages += [turn["usage"] for turn in earlier]
            cut = cut or any(turn["finish_reason"] == _CUT for turn in earlier)
        usage = max(usages, key=itemgetter("completion_tokens"))
        tokens = usage["completion_tokens"]
        self.verdicts[record["verdict"]] += 1
        self.engines[record["engine"]] += 1
        self.models[record["model"]] += 1
        self.versions[record["genq_version"]] += 1
        for one in usages:
            self._tokens.update(one)
        self.cut += cut
        self.retried += record["attempt"] > 1
        self.lengths.add(tokens, cut=cut)
        if usage["reasoning_tokens"]:
            self._count_thought(usage["reasoning_tokens"], tokens)
        self._count_limit(record["sampling"], cut=cut)
        if self.longest is None or tokens > self.longest.tokens:
            self.longest = Longest(tokens, record["k"], record["row_id"], cut)
        if record["verdict"] != Verdict.OK:
            self._remember(record, tokens, cut=cut, part=part)
        self._date(record, sum(one["completion_tokens"] for one in usages))

    def _count_thought(self, thought: int, tokens: int) -> None:
        answer = max(0, tokens - thought)
        self.thoughts.add(thought)
        self.answers.add(answer)
        self._thinking.update(thought=thought, answer=answer, completions=1)

    def _count_limit(self, sampling: str, *, cut: bool) -> None:
        limit = max_tokens_of(sampling)
        if limit is not None and (limit in self._limits or len(self._limits) < _LIMITS_KEPT):
            self._limits[limit] += 1
            self._cut_at[limit] += cut

    def _remember(self, record: dict[str, Any], tokens: int, *, cut: bool, part: str) -> None:
        known = self.examples.setdefault(record["verdict"], [])
        if len(known) == EXAMPLES:
            return
        limit = max_tokens_of(record["sampling"])
        words = f"ended by {record['finish_reason']} after {tokens:,} tokens"
        if cut and limit:
            words = f"cut off at {tokens:,} tokens; the limit was {limit:,}"
        example = Example(
            verdict=record["verdict"],
            kept=True,
            k=record["k"],
            row=record["row"],
            sample=record["sample"],
            row_id=record["row_id"],
            tokens=tokens,
            reason=words,
        )
        known.append(Kept(example, part))

    def _date(self, record: dict[str, Any], tokens: int) -> None:
        earliest, latest = self._window
        try:
            started = datetime.fromisoformat(record["started"]).timestamp()
        except ValueError:
            started = 0.0
        if not earliest <= started <= latest:
            self.undated += 1
        else:
            seconds = min(record["seconds"], latest - started)
            self.timeline.add(place_of(record["worker"]), started, seconds, tokens)

    @property
    def tokens(self) -> Tokens:
        """All tokens."""
        t = self._tokens
        return Tokens(
            prompt=t["prompt_tokens"],
            completion=t["completion_tokens"],
            cached=t["cached_tokens"],
            reasoning=t["reasoning_tokens"],
        )

    def limit(self, told: int | None, *, dead_truncated: int, finished: int) -> Limit:
        """Return how often completions met their limit; ``told``: what the run was told."""
        most = self._limits.most_common(_LIMITS_SHOWN)
        cut = self.cut + dead_truncated
        # Nothing of a dead letter tells its limit; without one of its own a row has the context's.
        cut_at = [at for at, n in self._cut_at.items() if n]
        if sum(self._cut_at.values()) != cut:
            cut_at = []
        return Limit(
            run_max_tokens=told,
            cut=cut,
            share=cut / finished if finished else 0.0,
            limits=[LimitShare(at, n, self._cut_at[at]) for at, n in most],
            other_limits=max(0, len(self._limits) - len(most)),
            lowest=min(self._limits, default=None),
            highest=max(self._limits, default=None),
            cut_lowest=min(cut_at, default=None),
            cut_highest=max(cut_at, default=None),
        )

    def thinking(self) -> Thinking:
        """Return thoughts against answers."""
        thought, answer = self._thinking["thought"], self._thinking["answer"]
        both = (self.thoughts + self.answers).distribution()
        return Thinking(
            completions=self._thinking["completions"],
            thought_tokens=thought,
            answer_tokens=answer,
            share=thought / (thought + answer) if thought else 0.0,
            thought=self.thoughts.distribution(like=both),
            answer=self.answers.distribution(like=both),
        )

    def throughput(self) -> Throughput:
        """Return tokens per second over time, of all and of each worker."""
        width, series = self.timeline.series(SERIES_BINS)
        workers = self.timeline.workers
        rates = {name: _rate(worker) for name, worker in workers.items()}
        middle = median(rates.values()) if rates else 0.0
        order = sorted(workers, key=lambda name: (name == OTHERS, -workers[name].tokens, name))
        total = [sum(at) for at in zip(*series.values(), strict=True)]
        start = self.timeline.start
        return Throughput(
            start=None if start is None else utc(start),
            bin_seconds=width,
            bins=len(total),
            total=[round(value, 3) for value in total],
            workers=[
                _speed(name, workers[name], series[name], slow=rates[name] < _SLOW_SHARE * middle)
                for name in order
            ],
            other_workers=len(self.timeline.joined),
            undated=self.undated,
        )


def max_tokens_of(sampling: str) -> int | None:
    """Return the limit that a completion was made under, from its sampling settings as JSON."""
    limit = loads(sampling).get("max_tokens")
    return int(limit) if limit is not None else None


def utc(at: float) -> str:
    """Return a unix time as the report writes times."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def place_of(worker: str) -> str:
    """Return where a worker ran: one GPU is one place, however often its consumer was started.

    Consumers without a GPU may run beside each other on one host, so they stay apart.
    """
    return _LIFE.sub(r"\1", worker)


def _rate(worker: Worker) -> float:
    seconds = worker.busy.seconds
    return worker.tokens / seconds if seconds > 0 else 0.0


def _speed(name: str, worker: Worker, series: list[float], *, slow: bool) -> WorkerSpeed:
    busy = worker.busy.seconds
    first, last = worker.busy.span
    return WorkerSpeed(
        worker=name,
        completions=worker.completions,
        tokens=worker.tokens,
        busy_seconds=round(busy, 3),
        idle_seconds=round(max(0.0, last - first - busy), 3),
        tokens_per_second=round(_rate(worker), 3),
        in_flight=round(worker.request_seconds / busy, 2) if busy > 0 else 0.0,
        slow=slow,
        series=[round(value, 3) for value in series],
    )
