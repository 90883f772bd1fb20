"""The search of a round: what to try next, and a journal of what was tried. Blocks on the disk.

Optuna asks and is told; its journal outlives any kill. What was under way at a kill is tried once
more, since the kill may have had nothing to do with it.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

from common.errors import UsageError
from common.installing import install
from consumer.tuning.results import Outcome, Trial, trial_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from consumer.tuning.space import Point, Value

_STUDY = "round"
_BASELINE, _SOAK, _QUEUED, _RESULT, _AGAIN = "baseline", "soak", "queued", "result", "again"
_STARTUP = 6  # points at random before the model of what is good is trusted


class Search:
    """One round's journal, and the next point. For one process at a time: the round has a lock."""

    def __init__(self, path: Path, *, seed: int = 0) -> None:
        """Open the journal, or begin it.

        Raises:
            UsageError: Optuna is not installed.
        """
        if importlib.util.find_spec("optuna") is None:
            raise UsageError(
                "Optuna is not installed in this Python.",
                why="gen-consumer tune searches with it.",
                fix=install("tune"),
            )
        import optuna  # noqa: PLC0415 - an extra, and slow to load
        from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415

        self._optuna: Any = optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path.with_name(path.name + ".lock").unlink(missing_ok=True)  # of a process that was killed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some of it calls itself experimental
            backend = JournalFileBackend(str(path))
            self._study: Any = optuna.create_study(
                study_name=_STUDY,
                storage=optuna.storages.JournalStorage(backend),
                load_if_exists=True,
                direction="maximize",
                sampler=optuna.samplers.TPESampler(
                    seed=seed, multivariate=True, n_startup_trials=_STARTUP
                ),
            )
        self._asked: dict[int, Any] = {}
        self._end_interrupted()

    @property
    def baseline(self) -> Trial | None:
        """The defaults, measured; None before that."""
        found = self._study.user_attrs.get(_BASELINE)
        return trial_of(found) if found else None

    def keep_baseline(self, trial: Trial) -> None:
        """Keep the measurement of the defaults."""
        self._study.set_user_attr(_BASELINE, trial.as_json())

    @property
    def soak(self) -> list[tuple[str, Trial]]:
        """The trials of the confirmation so far: ``A`` is the default, ``B`` the winner."""
        return [(str(name), trial_of(one)) for name, one in self._study.user_attrs.get(_SOAK, [])]

    def keep_soak(self, soak: Sequence[tuple[str, Trial]]) -> None:
        """Keep the trials of the confirmation."""
        self._study.set_user_attr(_SOAK, [(name, trial.as_json()) for name, trial in soak])

    def queue(self, points: Sequence[Point]) -> None:
        """Have these points asked first, in this order. Does nothing in a round that goes on."""
        if self._study.user_attrs.get(_QUEUED):
            return
        for point in points:
            self._study.enqueue_trial(point)
        self._study.set_user_attr(_QUEUED, value=True)

    def ask(self, choices: Mapping[str, Sequence[Value]]) -> tuple[int, Point]:
        """Return the next point and its number. Each number must be told or skipped."""
        kind = self._optuna.distributions.CategoricalDistribution
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self._study.ask({knob: kind(tuple(values)) for knob, values in choices.items()})
        self._asked[trial.number] = trial
        return trial.number, dict(trial.params)

    def tell(self, number: int, result: Trial) -> None:
        """Keep what a point came to.

        One that was cut counts with the rate it had, one that failed with none: both are known to
        be no place to look further.
        """
        trial = self._asked.pop(number)
        if result.outcome is Outcome.STOPPED:
            self._again(trial.params)
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            return
        trial.set_user_attr(_RESULT, result.as_json())
        self._study.tell(trial, result.score)

    def skip(self, number: int, score: float) -> None:
        """Tell a point that needs no server: it does not fit, or is the same as another."""
        self._study.tell(self._asked.pop(number), score)

    @property
    def trials(self) -> list[Trial]:
        """Every trial that had a server, in order; the defaults are not among them."""
        found = (trial.user_attrs.get(_RESULT) for trial in self._study.trials)
        return [trial_of(one) for one in found if one]

    def _end_interrupted(self) -> None:
        states = self._optuna.trial.TrialState
        for trial in self._study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            if not trial.user_attrs.get(_AGAIN):
                self._again(trial.params)
            self._study.tell(trial.number, state=states.FAIL)

    def _again(self, params: Mapping[str, Value]) -> None:
        self._study.enqueue_trial(dict(params), user_attrs={_AGAIN: True})
