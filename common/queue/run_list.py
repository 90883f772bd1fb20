"""The list of runs, as services read it every second; of those that are over, now and then.

A run stays in Redis when it is over, so there are more of them every week, and to few of them
anything happens again.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from common.ids import RunName
from common.keys import RUNS, RunKeys
from common.queue.run_facts import run_info, texts_of
from common.queue.scripts import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import redis.asyncio

    from common.records import RunInfo

OVER = frozenset({"closed", "cancelled"})
REST_SECONDS = 3.0  # at most, between two looks at a run that is over
PIPED_RUNS = 500  # a round trip


@dataclass(frozen=True, slots=True)
class _Over:
    """A run that was over when it was read."""

    info: RunInfo
    made: float  # when the run of this name was made
    until: float  # it is read again


class RunList:
    """Reads which runs there are, again and again.

    Promised: a run that is not over, or that was made since, is read at every look.
    """

    def __init__(
        self,
        redis: redis.asyncio.Redis,
        *,
        rest_seconds: float = REST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis: Any = redis  # its types allow for answers in text; ours are bytes
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._over: dict[RunName, _Over] = {}
        # Of those that are over: whose queue or stream was not empty, as `rq requeue` leaves it.
        self.stirred: set[RunName] = set()

    async def look(self) -> list[RunInfo]:
        """Return all runs: the highest priority first, then the oldest.

        Raises:
            QueueError: Redis refused or could not be reached; what was known stays.
        """
        names = await self._ask(self._redis.zrange(RUNS, 0, -1, withscores=True))
        made = {RunName(name.decode()): score for name, score in names}
        now = self._clock()
        kept = {
            run: rests
            for run, rests in self._over.items()
            if rests.until > now and rests.made == made.get(run)
        }
        due = [run for run in made if run not in kept]
        found: list[RunInfo] = []
        stirred = self.stirred & kept.keys()
        for at in range(0, len(due), PIPED_RUNS):
            for info, stirs in await self._read(due[at : at + PIPED_RUNS]):
                found.append(info)
                if stirs and info.state in OVER:
                    stirred.add(info.run)
        over = [info for info in found if info.state in OVER]
        self._over = kept | {info.run: self._resting(info, made[info.run], now) for info in over}
        self.stirred = stirred
        found += [rests.info for rests in kept.values()]
        return sorted(found, key=lambda info: (-info.priority, info.created))

    def _resting(self, info: RunInfo, made: float, now: float) -> _Over:
        # Not all at one time: those that were read together would be for ever.
        return _Over(info, made, now + self._rest_seconds * random.uniform(0.5, 1))

    async def _read(self, runs: Sequence[RunName]) -> list[tuple[RunInfo, bool]]:
        """Return those of the runs that are there, and whether something is in them that moves."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for run in runs:
                keys = RunKeys(run)
                pipe.hgetall(keys.meta)
                if run in self._over:
                    pipe.llen(keys.queue)
                    pipe.xlen(keys.stream)
            answers = iter(await self._ask(pipe.execute()))
        read = []
        for run in runs:
            facts = texts_of(next(answers))
            moving = next(answers) + next(answers) if run in self._over else 0
            if facts:
                read.append((run_info(run, facts), bool(moving)))
        return read

    async def _ask(self, question: Any) -> Any:
        try:
            return await question
        except (RedisError, OSError) as error:
            raise explain(error, RunName("*"), "reading") from error
