"""A bounded round of tuning: the defaults, the search, the confirmation, never a minute longer.

The time that a round has run is kept beside its journal, second by second, so that it adds up over
any number of calls and kills. What is tried and what becomes of it is the journal's
(:mod:`consumer.tuning.search`); how a server is tried is a :class:`consumer.tuning.trial.Tried`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from common.codec import dumps, loads
from common.errors import EngineError, UsageError
from common.private import write_private
from consumer.tuning.results import Outcome, Trial
from consumer.tuning.space import DEFAULT, Setting
from consumer.tuning.trial import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from consumer.tuning.search import Search
    from consumer.tuning.space import Space
    from consumer.tuning.steady import Pace
    from consumer.tuning.trial import Tried

GAIN = 1.02  # less over the defaults is noise
FULL_SOAK, HALF_SOAK = 7.0, 5.0  # trials that must fit for a confirmation of four, or of two
LEARNT_ANSWERS = 20  # so many answers make a mean length
_MISSES = 200  # points in a row that need no server; then the space is used up
_TICK_SECONDS = 1.0
_KNOWN_STARTS = 2  # so many trials say how long one takes
_UNTRIED = (Outcome.LATE, Outcome.STOPPED)  # says nothing of the setting: it is tried later
_VAIN = 2  # so many of them in a row, and the round is better run later
_SLOWER = 1.1  # a start or an end may take so much longer than the longest before


class Spent:
    """For how long a round has run, over all calls."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._since = clock()
        self._before = 0.0
        with suppress(OSError, ValueError, KeyError, TypeError):
            self._before = float(loads(path.read_bytes())["seconds"])

    @property
    def seconds(self) -> float:
        """The sum, this call included."""
        return self._before + self._clock() - self._since

    def keep(self) -> None:
        """Write it down (blocks on the disk)."""
        write_private(self._path, dumps({"seconds": self.seconds}))


class Board(Protocol):
    """What shows a round to people."""

    def begin(self, label: str, setting: Setting, left_seconds: float) -> None:
        """A trial begins."""

    def end(self, label: str, trial: Trial, best: float) -> None:
        """A trial has ended; ``best``: the best rate so far."""

    def say(self, text: str) -> None:
        """Something is worth a line."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a round has found so far."""

    baseline: Trial
    trials: tuple[Trial, ...]
    soak: tuple[tuple[str, Trial], ...]
    space: Space
    spent_seconds: float
    notes: tuple[str, ...] = ()

    @property
    def winner(self) -> Trial | None:
        """The best setting that may win; None where the defaults are best."""
        able = [trial for trial in self.trials if trial.may_win]
        best = max(able, key=lambda trial: trial.tokens_per_second, default=None)
        if best is None or best.tokens_per_second < GAIN * self.baseline.tokens_per_second:
            return None
        return best

    @property
    def confirmed(self) -> bool | None:
        """Whether the winner beat the defaults again, on held-out prompts; None: not tried."""
        default, winner = self.soaked("A"), self.soaked("B")
        if any(not trial.may_win for name, trial in self.soak if name == "B"):
            return False
        if winner is None:
            return None
        return winner > GAIN * (default or self.baseline.tokens_per_second)

    def soaked(self, name: str) -> float | None:
        """Return the mean rate of the confirmation's trials of one side."""
        rates = [one.tokens_per_second for who, one in self.soak if who == name and one.may_win]
        return sum(rates) / len(rates) if rates else None

    @property
    def before(self) -> float:
        """Tokens a second of the defaults."""
        return self.soaked("A") or self.baseline.tokens_per_second

    @property
    def after(self) -> float:
        """Tokens a second of the winner, or of the defaults where nothing beats them."""
        winner = self.winner
        if winner is None or self.confirmed is False:
            return self.before
        return self.soaked("B") or winner.tokens_per_second


@dataclass(slots=True)
class Round:
    """One round. ``space_of`` makes the space of the measured defaults."""

    search: Search
    tried: Tried
    space_of: Callable[[Trial], Space]
    pace: Pace
    minutes: float
    spent: Spent
    clock: Callable[[], float]
    board: Board
    start_seconds: float = 1800.0  # longest start of the defaults
    most_trials: int | None = None
    soaks: int = 4
    notes: list[str] = field(default_factory=list)
    _ends: float = 0.0
    _end_seconds: float = 0.0  # longest end of a server so far
    _number: int = 0

    async def run(self) -> Result:
        """Run until the minutes are over, or nothing is left to try.

        When it is cancelled no server is left, and the same call goes on later.

        Raises:
            EngineError: the defaults do not run, or answer nonsense.
            UsageError: the minutes are too few for the defaults alone.
            ConflictError: somebody else has the GPU.
        """
        left = self.minutes * 60 - self.spent.seconds
        self._ends = self.clock() + left
        known = [self.search.baseline, *self.search.trials, *(one for _, one in self.search.soak)]
        self._end_seconds = max(one.end_seconds if one else 0.0 for one in known)
        ticking = asyncio.create_task(self._tick())
        try:
            baseline = await self._baseline()
            space = self.space_of(baseline)
            self.search.queue(space.first())
            await self._search(baseline, space)
            await self._soak(self.result(baseline, space))
            return self.result(baseline, space)
        finally:
            ticking.cancel()
            await asyncio.to_thread(self.spent.keep)

    def result(self, baseline: Trial, space: Space) -> Result:
        """Return what has been found so far.

        Of the confirmation only what was measured of the present winner: a round that goes on with
        more minutes may have found a better one meanwhile.
        """
        found = Result(
            baseline,
            tuple(self.search.trials),
            (),
            space,
            self.spent.seconds,
            tuple(self.notes),
        )
        soak = [(n, t) for n, t in self.search.soak if n == "A" or _same(t, found.winner)]
        return replace(found, soak=tuple(soak))

    @property
    def _until(self) -> float:
        """When a measurement must be over, so that its server can end within the minutes."""
        return self._ends - max(self.pace.stop_seconds, _SLOWER * self._end_seconds)

    @property
    def _left(self) -> float:
        return self._until - self.clock()

    async def _baseline(self) -> Trial:
        if (known := self.search.baseline) is not None:
            self.board.say(f"going on: {len(self.search.trials)} trials are known")
            return known
        order = Order(DEFAULT, self._until, self.start_seconds)
        trial = await self._try("default", order)
        if trial.outcome is Outcome.LATE and not trial.fix:
            raise UsageError(
                f"{self.minutes:g} minutes are too few: {trial.why}.",
                why="The engine's defaults alone were not measured in that time.",
                fix=f"gen-consumer tune --minutes {max(8, round(self.minutes * 3)):d} ...",
            )
        if trial.outcome in _UNTRIED:
            again = "" if _only_shows(trial.fix) else "    (then the same command again)"
            raise UsageError(
                "The engine's defaults were not measured.",
                why=f"{trial.why[:1].upper()}{trial.why[1:].rstrip('.')}.",
                fix=f"{trial.fix or 'gen-producer status'}{again}",
            )
        if trial.outcome is not Outcome.OK:
            raise EngineError(
                f"The defaults do not run: {trial.outcome}.",
                why=trial.honesty if trial.outcome is Outcome.DISHONEST else trial.why,
                fix="Give flags with which it serves, behind a --; see: gen-consumer check --help",
            )
        self.search.keep_baseline(trial)
        return trial

    async def _search(self, baseline: Trial, space: Space) -> None:
        choices = space.choices()
        known = {Setting(trial.flags, trial.window).key: trial for trial in self.search.trials}
        misses = vain = 0
        while misses < _MISSES and choices:
            best = self._best(baseline)
            if self._left - self._reserve(baseline) < self._cost(baseline, whole=False):
                return
            if self.most_trials is not None and len(self.search.trials) >= self.most_trials:
                return
            number, point = self.search.ask(choices)
            setting = space.setting(point)
            if (score := _foregone(setting, known, best)) is not None or setting is None:
                self.search.skip(number, score or 0.0)
                misses += 1
                continue
            misses = 0
            try:
                trial = await self._try(f"trial {number}", self._order(setting, baseline, best))
            except BaseException:
                self.search.tell(number, Trial(Outcome.STOPPED))
                raise
            if trial.outcome in _UNTRIED:
                self.search.tell(number, Trial(Outcome.STOPPED))
                vain += 1
                if vain == _VAIN or trial.fix:  # what waits for a person does so at the next, too
                    self._say("The search ended early", trial)
                    return
                if trial.outcome is Outcome.LATE:
                    return
                continue
            vain = 0
            known[setting.key] = trial
            self.search.tell(number, trial)
        self.notes.append("Every setting that fits and could win was tried.")

    async def _soak(self, result: Result) -> None:
        winner, soak = result.winner, list(result.soak)
        if winner is None:
            return
        setting = Setting(winner.flags, winner.window, changes_outputs=winner.changes_outputs)
        fits = int(self._left // self._cost(result.baseline, whole=True))
        plan, ahead = _confirmation(soak, self.soaks, fits)
        if len(plan) < self.soaks:
            left = {"": "nothing was measured again", "B": "the winner alone was measured again"}
            self.notes.append(
                "The minutes did not allow the confirmation A B A B:"
                f" {left.get(plan, 'it was A B')}."
            )
        for name in ahead:
            order = Order(
                DEFAULT if name == "A" else setting,
                self._until,
                self._start_limit(result.baseline),
                held_out=True,
                seed=100 + len(soak),
            )
            trial = await self._try(f"soak {name}", order)
            if trial.outcome in _UNTRIED:
                self._say("The confirmation ended early", trial)
                return
            soak.append((name, trial))
            self.search.keep_soak(soak)

    def _say(self, what: str, trial: Trial) -> None:
        """Note what was not done for want of something, and how to come by it."""
        fix = " ".join(trial.fix.split())
        way = f" First: {fix}; then the same command again goes on." if fix else ""
        if _only_shows(fix):
            way = f" See: {fix}"
        self.notes.append(f"{what}: {trial.why.rstrip('.')}.{way}")

    async def _try(self, label: str, order: Order) -> Trial:
        self.board.begin(label, order.setting, self._left)
        trial = await self.tried(order)
        self._end_seconds = max(self._end_seconds, trial.end_seconds)
        baseline = self.search.baseline or trial
        best = max(self._best(baseline).tokens_per_second, trial.tokens_per_second)
        self.board.end(label, trial, best)
        return trial

    def _order(self, setting: Setting, baseline: Trial, best: Trial) -> Order:
        self._number += 1
        limit = self._start_limit(baseline)
        return Order(setting, self._until, limit, best=best.ages, seed=self._number)

    def _best(self, baseline: Trial) -> Trial:
        able = [trial for trial in self.search.trials if trial.may_win]
        return max([baseline, *able], key=lambda trial: trial.tokens_per_second)

    def _start_limit(self, baseline: Trial) -> float:
        factor, least = self.pace.start_factor, self.pace.start_least_seconds
        return max(least, factor * baseline.start_seconds)

    def _cost(self, baseline: Trial, *, whole: bool) -> float:
        """Return the seconds that one more trial may take; not ``whole``: just enough to tell.

        The first start on a machine compiles kernels and reads the weights from a cold disk, and
        takes up to three times as long as any after it: once two others are known, it says nothing.
        """
        good = [one for one in self.search.trials if one.outcome is Outcome.OK]
        if len(good) < _KNOWN_STARTS:
            good.append(baseline)
        beside = max(one.seconds - one.measured_seconds for one in good)
        measure = self.pace.measure_seconds if whole else self.pace.least_seconds
        return _SLOWER * beside + measure

    def _reserve(self, baseline: Trial) -> float:
        """Return the seconds to keep for the confirmation."""
        cost = self._cost(baseline, whole=True)
        trials = self.minutes * 60 / cost
        return cost * (4 if trials >= FULL_SOAK else 2 if trials >= HALF_SOAK else 0)

    async def _tick(self) -> None:
        while True:
            await asyncio.to_thread(self.spent.keep)
            await asyncio.sleep(_TICK_SECONDS)


def _confirmation(soak: Sequence[tuple[str, Trial]], most: int, fits: int) -> tuple[str, list[str]]:
    """Return the longest confirmation that can be had, and which of its trials are ahead.

    Of ``most`` trials; ``soak`` are those that were measured, and ``fits`` more find time.
    """
    for plan in ("ABAB", "AB", "B"):
        ahead = list(plan)
        for name, _trial in soak:
            if name in ahead:
                ahead.remove(name)
        if len(plan) <= most and len(ahead) <= max(0, fits):
            return plan, ahead
    return "", []


def _only_shows(fix: str) -> bool:
    """Whether a way out shows how the run stands, and nothing goes on by it."""
    return fix.startswith("gen-producer status ")


def _same(trial: Trial, winner: Trial | None) -> bool:
    """Whether it tried the winner's setting."""
    return winner is not None and (trial.flags, trial.window) == (winner.flags, winner.window)


def _foregone(setting: Setting | None, known: dict[str, Trial], best: Trial) -> float | None:
    """Return the score of a point that needs no server; None: it does need one."""
    if setting is None:
        return 0.0
    if (same := known.get(setting.key)) is not None:
        return same.score
    # With drafts the bound rests on an assumption: how many of them are accepted.
    drafts = dict(setting.point).get("drafts")
    if setting.predicted is not None and not drafts and setting.predicted < best.tokens_per_second:
        return setting.predicted  # not even in theory
    return None
