"""Whether this engine answers as the first one did that served a run.

The first engine that a run accepts leaves its answers to the test prompts beside run.json; each
later one is compared with them before it leases anything of that run. Redis settles who was first
where several come at once, and has the answers for consumers of earlier releases, which look
nowhere else.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from common.codec import dumps, loads
from common.errors import StoreAwayError, StoreError
from common.first_engine import keep_first, read_first
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


class Agreement:
    """Compares this consumer's engine with the runs' references. No check, no objection."""

    def __init__(self, runs: Runs, honesty: Honesty | None, store: ObjectStore) -> None:
        self._runs = runs
        self._honesty = honesty
        self._store = store
        self._known: dict[tuple[str, str], str] = {}

    async def objection(self, info: RunInfo) -> str:
        """Return why this engine must not serve a run; empty when it may.

        The first time for each run it is looked up, or left there, and an objection is said.

        Raises:
            QueueError: Redis did not answer.
            StoreError: object storage did not: what the run's first engine said is not known.
        """
        if self._honesty is None or not self._honesty.record:
            return ""
        key = (info.run, info.epoch)
        if key not in self._known:
            reference = await self._reference(info.run, self._honesty)
            if not reference:
                log.warning("the record of the run's first engine cannot be read", run=info.run)
            why = self._known[key] = _difference(self._honesty, reference)
            if why:
                log.error("run left alone: this engine answers otherwise", run=info.run, why=why)
        return self._known[key]

    async def _reference(self, run: RunName, honesty: Honesty) -> Sequence[Probe]:
        kept = await asyncio.to_thread(read_first, self._store, run)
        if kept is not None:
            if answers := answers_of(kept):
                await self._runs.reference(run, pack(answers))
            return answers
        mine = pack(honesty.record)
        first = await self._runs.reference(run, mine)
        if not (answers := unpack(first)):
            return ()
        record = record_of(answers, honesty if first == mine else None)
        try:
            return answers_of(await asyncio.to_thread(keep_first, self._store, run, record))
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
            return answers


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


def _difference(honesty: Honesty, reference: Sequence[Probe]) -> str:
    try:
        judge(reference, honesty.record, 2 * honesty.tolerance)
    except UnfitError as error:
        return error.why
    return ""
