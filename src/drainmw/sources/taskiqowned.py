"""Taskiq's scheduler in several processes, of which one sends each task.

    OwnedTaskiqClock(scheduler, drain.own("reports"))

Every process runs its scheduler. What is due is claimed before it is sent, by what
all of them know of it: which schedule it is of, and when it was due. So what comes
due while nobody owns, in a cut-over or a drain, is sent once, by the next owner.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from drainmw.errors import LeaseCrowded
from drainmw.log import logger
from drainmw.sources.base import check_owner
from drainmw.sources.extras import extra
from drainmw.sources.taskiqscheduler import intercepted
from drainmw.text import failure_text

with extra("taskiq"):
    from taskiq.abc.schedule_source import ScheduleSource
    from taskiq.cli.scheduler.run import is_cron_task_now
    from taskiq.schedule_sources import LabelScheduleSource
    from taskiq.scheduler.scheduled_task import ScheduledTask
    from taskiq.scheduler.scheduler import TaskiqScheduler

if TYPE_CHECKING:
    from drainmw.owner import Owner

PAUSE = 0.2  # seconds until a fire that was not granted is asked for again
CROWDED_PAUSE = 30.0
EARLY = timedelta(seconds=0.5)  # Taskiq looks at full seconds, and may wake before
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
MOMENT = timedelta(milliseconds=1)
EPOCH = datetime.fromtimestamp(0, UTC)


class OwnedTaskiqClock:
    """Stands before the one method by which a scheduler sends. It is no source: its
    owner is, which counts what is being sent."""

    def __init__(
        self,
        scheduler: TaskiqScheduler,
        owner: Owner,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`wall` gives the time of day, in seconds since 1970.

        Raises:
            Misuse: It is no scheduler, or that is no owner.
        """
        check_owner(owner, "OwnedTaskiqClock")
        self._owner = owner
        self._wall = wall
        self._waiting = 0
        self._send = intercepted(scheduler, self._on_ready, "OwnedTaskiqClock")
        owner.counts_overdue.append(self._overdue)

    async def _on_ready(self, source: ScheduleSource, task: ScheduledTask) -> None:
        """Taskiq has one of these at a time for each schedule."""
        begun = self._now()
        self._waiting += 1
        try:
            while True:
                if await self._is_over(source, task, begun):
                    return
                await asyncio.sleep(PAUSE)
        finally:
            self._waiting -= 1

    async def _is_over(
        self, source: ScheduleSource, task: ScheduledTask, begun: datetime
    ) -> bool:
        """Send it, if it is for this process; or find that another one has."""
        await self._owner.gained
        name, due = _name(source, task), _newest(task, begun, self._now())
        try:
            async with self._owner.tick(due, name) as mine:
                if mine:
                    await self._send(source, task)
                    return True
            last = await self._owner.since(name, due - MOMENT)
        except LeaseCrowded as exc:
            error = failure_text(exc)
            logger().error("tick failed", schedule=task.task_name, error=error)
            await asyncio.sleep(CROWDED_PAUSE)
            return False
        return last is not None and last >= due

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall(), UTC)

    def _overdue(self) -> int:
        """Elsewhere another process may have sent them."""
        return 0 if self._owner.generation is None else self._waiting


def _newest(task: ScheduledTask, begun: datetime, now: datetime) -> datetime:
    """When the newest fire was due, in the same words in every process.

    Of those that have come due since one began to wait, it stands for all.
    """
    if task.cron is not None:
        due, first = _minute(now), max(_minute(begun), _minute(now) - DAY)
        while due > first and not is_cron_task_now(task.cron, due, task.cron_offset):
            due -= MINUTE
        return due
    if task.interval is not None:
        given = task.interval
        every = given if isinstance(given, timedelta) else timedelta(seconds=given)
        return now + EARLY - (now + EARLY - EPOCH) % every
    if task.time is None:
        raise AssertionError("Taskiq lets a schedule have one of them at least")
    return task.time if task.time.tzinfo else task.time.replace(tzinfo=UTC)


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def _name(source: ScheduleSource, task: ScheduledTask) -> str:
    """What all releases know a schedule by; in a label it has an id of its start."""
    if not isinstance(source, LabelScheduleSource):
        return f"{task.task_name}:{task.schedule_id}"
    said = task.model_dump(exclude={"schedule_id", "task_id", "labels"})
    digest = hashlib.sha256(json.dumps(said, default=str, sort_keys=True).encode())
    return f"{task.task_name}:{digest.hexdigest()[:12]}"
