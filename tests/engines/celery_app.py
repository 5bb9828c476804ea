"""The Celery app of the tests: their workers and their beat run it."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from drainmw.sources.celery import drainable
from tests.engines import journal

EVERY = 0.4  # seconds between two fires of beat
FIRED = "fired"  # the queue into which it sends
LEASE = "TEST_LEASE"  # names the variable of how long a worker's lease lasts


def made(broker: str, *, can_be_held: bool = True) -> Any:
    """The app with its jobs, on that broker."""
    made = Celery("tests", broker=broker)
    if can_be_held:
        drainable(made)
    made.conf.task_ignore_result = True
    # How long Redis keeps a worker's fetch open, in seconds.
    options: dict[str, float] = {"polling_interval": 0.1}
    if LEASE in os.environ:
        options["visibility_timeout"] = float(os.environ[LEASE])
        # What is older than that is looked for at all times.
        options |= {"unacked_restore_interval": 0.1, "unacked_restore_throttle": 1}
    made.conf.broker_transport_options = options
    # Nobody works on what beat sends: it is counted where it lies.
    fire = {"task": "fire", "schedule": EVERY, "options": {"queue": FIRED}}
    made.conf.beat_schedule = {"fire": fire}
    made.task(name="work")(journal.work)
    made.task(name="late", acks_late=True)(journal.work)
    made.task(name="limited", rate_limit="5/s")(journal.work)
    made.task(name="named", bind=True)(_work_by_name)
    return made


def _work_by_name(task: Any, path: str, id: str, seconds: float) -> None:
    """Note the worker, too."""
    journal.work(path, f"{task.request.hostname} {id}", seconds)


app = made(
    os.environ.get("TEST_BROKER", "memory://"),
    can_be_held="TEST_STOCK" not in os.environ,
)
