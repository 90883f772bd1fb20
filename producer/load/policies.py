"""What a run does with answers of each class of row fault, as a command line says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import UsageError
from common.records import ENGINE_FAULTS, Policy, RunSettings, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

# What each class may be told. Nothing can be kept where no answer to the row exists, and a row
# that no engine can be asked is as bad the second time.
CHOICES: dict[Verdict, tuple[Policy, ...]] = {
    Verdict.EMPTY: tuple(Policy),
    Verdict.THOUGHT_ONLY: tuple(Policy),
    Verdict.TRUNCATED: tuple(Policy),
    Verdict.LOOPING: tuple(Policy),
    Verdict.CONTENT_ERROR: (Policy.RETRY, Policy.DEAD),
    Verdict.INPUT_TRUNCATED: (Policy.RETRY, Policy.DEAD),
    Verdict.TOO_LONG: (Policy.DEAD,),
    Verdict.BAD_ROW: (Policy.DEAD,),
}
_CUT_OFF = (Verdict.TRUNCATED, Verdict.THOUGHT_ONLY)  # a higher limit is of use to these
_FIX = "For example: --policy truncated=retry --policy empty=dead"


def parse_policies(words: Sequence[str]) -> dict[str, str]:
    """Return the policies that ``CLASS=POLICY`` words name.

    Raises:
        UsageError: a class or a policy is none, they do not go together, or a class is there twice
            with two policies.
    """
    named: dict[str, str] = {}
    for word in words:
        name, _, policy = word.partition("=")
        _refuse(word, name, policy)
        if named.setdefault(name, policy) != policy:
            raise UsageError(
                f"--policy names {name} twice: {named[name]} and {policy}.",
                why="A run does one thing with answers of a class.",
                fix=_FIX,
            )
    return named


def _refuse(word: str, name: str, policy: str) -> None:
    """Return if a policy can be had."""
    if name in ENGINE_FAULTS:
        raise UsageError(
            f"--policy {word}: {name} is a fault of the engine, not of a row.",
            why="It is never charged to the row, which goes back on the queue.",
            fix=f"Classes with a policy: {_names(CHOICES)}",
        )
    if name not in CHOICES:
        raise UsageError(
            f"--policy {word}: there is no class {name[:40]!r} that has a policy.",
            why=f"Classes: {_names(CHOICES)}.",
            fix=_FIX,
        )
    choices = CHOICES[Verdict(name)]
    if policy not in choices:
        raise UsageError(
            f"--policy {word}: {name} cannot have the policy {policy[:40]!r}.",
            why=f"It may be {' or '.join(choices)}.",
            fix=f"For example: --policy {name}={choices[-1]}",
        )


def refuse_idle(settings: RunSettings) -> None:
    """Return if what a run was told can all be of use.

    Raises:
        UsageError: a limit for retries where what was cut off is not tried again, or one that is
            no higher; several samples of answers that are kept as they are.
    """
    if settings.keep_answers and settings.samples > 1:
        raise UsageError(
            f"--keep-answers does not go with --samples {settings.samples}.",
            why="Every sample would be the row's own answer again.",
            fix="Leave --samples out.",
        )
    limit, first = settings.retry_max_tokens, settings.sampling.max_tokens
    if limit is None:
        return
    if not any(settings.policies.get(name) == Policy.RETRY for name in _CUT_OFF):
        raise UsageError(
            "--retry-max-tokens has no answers to act on.",
            why="What was cut off is not tried again: "
            + ", ".join(f"{name} is {settings.policies.get(name)}" for name in _CUT_OFF)
            + ".",
            fix=f"--retry-max-tokens {limit} --policy truncated=retry",
        )
    if first is not None and limit <= first:
        raise UsageError(
            f"--retry-max-tokens {limit} is no higher than --max-tokens {first}.",
            why="An answer that was cut off would be cut off again.",
            fix=f"--retry-max-tokens {first * 2}",
        )


def _names(classes: dict[Verdict, tuple[Policy, ...]]) -> str:
    return ", ".join(str(one) for one in classes)
