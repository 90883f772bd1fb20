"""What Redis remembers of a run's first engine, read without leaving anything there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from common.keys import RunKeys
from common.queue.scripts import explain

if TYPE_CHECKING:
    from common.ids import RunName
    from common.queue.run_state import Runs


async def first_answers(runs: Runs, run: RunName) -> bytes | None:
    """Return what :meth:`Runs.reference` keeps of a run; None while nobody has offered anything.

    Raises:
        QueueError: Redis did not answer.
    """
    try:
        kept = await runs._redis.get(RunKeys(run).reference)  # noqa: SLF001 - of this package
    except (RedisError, OSError) as error:
        raise explain(error, run, "reading") from error
    return None if kept is None else bytes(kept)
