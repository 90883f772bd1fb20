"""Celery: late acknowledgement, as its manual says for tasks that may run twice.

A lost worker's tasks come back after the visibility timeout of its Redis transport.
"""

from __future__ import annotations

import sys

from asking import BROKER, REDELIVER_SECONDS, ROWS, answer
from celery import Celery

app = Celery("celery_app", broker=BROKER)
app.conf.update(
    broker_transport_options={"visibility_timeout": REDELIVER_SECONDS},
    task_acks_late=True,
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)
task = app.task(answer, name="answer")

if __name__ == "__main__" and "load" in sys.argv:
    for number in range(ROWS):
        task.delay(number)
