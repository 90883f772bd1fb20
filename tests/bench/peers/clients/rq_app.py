"""RQ: jobs with retries, as its documentation says; loaded in bulk."""

from __future__ import annotations

import sys

from asking import BROKER, ROWS, answer
from redis import Redis
from rq import Queue, Retry

if __name__ == "__main__" and "load" in sys.argv:
    queue = Queue("peers", connection=Redis.from_url(BROKER))
    queue.enqueue_many(
        [Queue.prepare_data(answer, (number,), retry=Retry(max=3)) for number in range(ROWS)]
    )
