"""Celery as it comes: tasks are acknowledged before they run."""

from __future__ import annotations

import sys

from asking import BROKER, ROWS, answer
from celery import Celery

app = Celery("celery_early_app", broker=BROKER)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
task = app.task(answer, name="answer")

if __name__ == "__main__" and "load" in sys.argv:
    for number in range(ROWS):
        task.delay(number)
