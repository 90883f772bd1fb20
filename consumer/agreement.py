"""Whether this engine answers as the first one did that served a run.

The first engine that a run accepts leaves its answers to the test prompts beside run.json; each
later one is compared with them before it leases anything of that run. Redis settles who was first
where several come at once, and has the answers for consumers of earlier releases, which look
nowhere else.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

from common.codec import dumps, loads
from common.errors import StoreAwayError, StoreError
from common.first_engine import keep_first, read_first
from common.queue.first_answers import first_answers
from consumer.engine.honesty import judge, pack, unpack
from consumer.engine.life import UnfitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.ids import RunName
    from common.objectstore import ObjectStore
    from common.queue.run_state import Runs
    from common.records import RunInfo
    from consumer.engine.honesty import Honesty
    from consumer.engine.honesty_paths import Probe

VERSION = 1

log = structlog.get_logger()


class Came(StrEnum):
    """What came of a comparison."""

    AGREED = "agreed"
    FIRST = "first"  # nobody was before it: its answers are the reference from now on
    DIFFERS = "differs"
    UNREADABLE = "unreadable"  # there is a record, which nobody can read
    NOTHING_IN_COMMON = "nothing in common"  # the record answers none of these prompts
    NO_RECORD = "no record"  # nobody was before it, and its answers were not left, either
    NOT_CHECKED = "not checked"  # it was asked nothing


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of it; ``why``: the answers side by side, where they differ."""

    came: Came
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Reference:
    """The answers of a run's first engine; none where they are not to be had, as ``came`` says."""

    answers: Sequence[Probe] = ()
    came: Came = Came.AGREED


class Agreement:
    """Compares this consumer's engine with the runs' references. No check, no objection.

    ``offers``: where a run has no reference yet, this engine's answers become it.
    """

    def __init__(
        self, runs: Runs, honesty: Honesty | None, store: ObjectStore, *, offers: bool = True
    ) -> None:
        self._runs = runs
        self._honesty = honesty
        self._store = store
        self._offers = offers
        self._references: dict[tuple[str, str], _Reference] = {}
        self._known: dict[tuple[str, str], tuple[Sequence[Probe], Compared]] = {}

    async def objection(self, info: RunInfo) -> str:
        """Return why this engine must not serve a run; empty when it may.

        What could not be compared is no objection: nothing is known to be wrong there.

        Raises:
            QueueError: Redis did not answer.
            StoreError: object storage did not: what the run's first engine said is not known.
        """
        return (await self.compare(info)).why

    async def compare(self, info: RunInfo) -> Compared:
        """Return what came of comparing the engine that was accepted last with a run's first one.

        That is looked up, or left there, the first time for each run. An engine that was started
        anew is compared anew, and what came of it is said.

        Raises:
            QueueError, StoreError: as :meth:`objection`.
        """
        honesty = self._honesty
        if honesty is None or not honesty.answers:
            return Compared(Came.NOT_CHECKED)
        key, mine = (info.run, info.epoch), honesty.answers
        of, known = self._known.get(key, ((), Compared(Came.NOT_CHECKED)))
        if of is not mine:
            if key not in self._references:
                self._references[key] = await self._reference(info.run, honesty)
            known = _compared(self._references[key], mine, honesty)
            self._known[key] = (mine, known)
            _say(info.run, known)
        return known

    async def _reference(self, run: RunName, honesty: Honesty) -> _Reference:
        kept = await asyncio.to_thread(read_first, self._store, run)
        if kept is not None and (answers := answers_of(kept)):
            if self._offers:
                await self._runs.reference(run, pack(answers))
            return _Reference(answers)
        if kept is not None or not self._offers:
            return await self._in_redis(run, damaged=kept is not None)
        return await self._offered(run, honesty)

    async def _in_redis(self, run: RunName, *, damaged: bool) -> _Reference:
        """Return what Redis remembers, and leave it as it is; ``damaged``: the store's is."""
        said = await first_answers(self._runs, run)
        if said is None and not damaged:
            return _Reference(came=Came.NO_RECORD)
        found = _reference_of(unpack(said or b""))
        if damaged and found.answers:
            log.warning("engine.json cannot be read: Redis says who was first", run=run)
        return found

    async def _offered(self, run: RunName, honesty: Honesty) -> _Reference:
        """Leave the answers as the run's reference, if it has none; return those that stand."""
        mine = pack(honesty.answers)
        first = await self._runs.reference(run, mine)
        if not (answers := unpack(first)):
            return _reference_of(())
        record = record_of(answers, honesty if first == mine else None)
        try:
            stands = await asyncio.to_thread(keep_first, self._store, run, record)
        except StoreAwayError:
            raise
        except StoreError as error:
            log.warning(
                "the run's first engine is remembered in Redis only",
                run=run,
                what=error.what,
                why=error.why,
                fix=error.fix,
            )
            return _Reference(answers, Came.FIRST if first == mine else Came.AGREED)
        if first == mine and stands == record:
            return _Reference(answers, Came.FIRST)
        return _reference_of(answers_of(stands))


def _reference_of(answers: Sequence[Probe]) -> _Reference:
    return _Reference(answers) if answers else _Reference(came=Came.UNREADABLE)


def _compared(reference: _Reference, mine: Sequence[Probe], honesty: Honesty) -> Compared:
    if not reference.answers:
        return Compared(reference.came)
    if not {one.prompt for one in reference.answers} & {one.prompt for one in mine}:
        return Compared(Came.NOTHING_IN_COMMON)
    try:
        judge(reference.answers, mine, 2 * honesty.tolerance, sides=("first", "now"))
    except UnfitError as error:
        return Compared(Came.DIFFERS, error.why)
    return Compared(reference.came)


def _say(run: RunName, compared: Compared) -> None:
    """Say of a run what somebody should know: it is left alone, or served on trust."""
    if compared.came is Came.DIFFERS:
        log.error("run left alone: this engine answers otherwise", run=run, why=compared.why)
    elif compared.came is Came.UNREADABLE:
        log.warning("the record of the run's first engine cannot be read", run=run)
    elif compared.came is Came.NOTHING_IN_COMMON:
        log.warning("the run's first engine was asked other prompts: nothing to compare", run=run)


def record_of(answers: Sequence[Probe], honesty: Honesty | None) -> bytes:
    """Return the object that keeps ``answers``; ``honesty``: the check that they are of, if ours.

    Another consumer's answers come without what its engine was.
    """
    facts, paths = (honesty.facts, honesty.paths) if honesty else (None, None)
    body = {
        "version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": f"{facts.engine} {facts.version}" if facts else "",
        "model": facts.model if facts else "",
        "paths": asdict(paths) if paths else None,
        "answers": loads(pack(answers)),
    }
    return dumps(body)


def answers_of(record: bytes) -> Sequence[Probe]:
    """Return the answers that an object keeps; none where they cannot be read."""
    try:
        return unpack(dumps(loads(record)["answers"]))
    except (KeyError, TypeError, ValueError):
        return ()
