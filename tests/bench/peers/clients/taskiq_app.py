"""taskiq: the Redis stream broker, which its documentation names where acknowledgement matters."""

from __future__ import annotations

import asyncio
import sys

from asking import BROKER, REDELIVER_SECONDS, ROWS, answer_async
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(
    url=BROKER,
    idle_timeout=REDELIVER_SECONDS * 1000,
    unacknowledged_lock_timeout=REDELIVER_SECONDS,  # "when the worker gets killed", it says
)
task = broker.task(task_name="answer")(answer_async)


async def load() -> None:
    await broker.startup()
    for number in range(ROWS):
        await task.kiq(number)
    await broker.shutdown()


if __name__ == "__main__" and "load" in sys.argv:
    asyncio.run(load())
