"""Taskiq's scheduler: the clock that sends tasks when they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from drainmw.errors import Misuse
from drainmw.flag import Pulse
from drainmw.sources.base import Counts, Intake
from drainmw.sources.extras import extra
from drainmw.text import kind_of

with extra("taskiq"):
    from taskiq.abc.schedule_source import ScheduleSource
    from taskiq.scheduler.scheduled_task import ScheduledTask
    from taskiq.scheduler.scheduler import TaskiqScheduler

Send = Callable[[ScheduleSource, ScheduledTask], Coroutine[Any, Any, None]]


def intercepted(scheduler: TaskiqScheduler, by: Send, who: str) -> Send:
    """Stand before the one method by which a scheduler sends; gives that method.

    Raises:
        Misuse: It is no scheduler.
    """
    if not isinstance(scheduler, TaskiqScheduler):
        raise Misuse(f"{who} takes a TaskiqScheduler, not {kind_of(scheduler)}")
    send = scheduler.on_ready
    # Of this one scheduler; a subclass would have to be chosen by the user.
    scheduler.on_ready = by  # type: ignore[assignment, method-assign]
    return send


class TaskiqClock:
    """A scheduler of this event loop. It counts the tasks that are being sent.

    The source stands before the one method by which the scheduler's loop sends. Who
    is due while it is held waits there, once for each schedule, until the release.
    """

    intake: Intake = "clock"
    unowned = (
        "would send what the owner before it has sent already; "
        "OwnedTaskiqClock(scheduler, owner) claims each fire"
    )

    def __init__(
        self, scheduler: TaskiqScheduler, *, name: str = "taskiq scheduler"
    ) -> None:
        """Make it before the scheduler runs, or after.

        Raises:
            Misuse: It is no scheduler.
        """
        self.name = name
        self.overdue = 0
        self._released = asyncio.Event()
        self._released.set()
        self._sending = 0
        self._changes = Pulse()
        self._send = intercepted(scheduler, self._on_ready, "TaskiqClock")

    async def hold(self) -> None:
        """Send nothing more; what is being sent is counted."""
        self._released.clear()

    def count(self) -> Counts:
        """The tasks that are being sent."""
        return Counts(schedules=self._sending)

    async def settled(self) -> None:
        """Return when nothing is being sent."""
        await self._changes.until(lambda: not self._sending)

    async def release(self) -> None:
        """Send again, first what has been due meanwhile."""
        self._released.set()

    async def _on_ready(self, source: ScheduleSource, task: ScheduledTask) -> None:
        while not self._released.is_set():
            self.overdue += 1
            try:
                await self._released.wait()
            finally:
                self.overdue -= 1
        self._sending += 1
        try:
            await self._send(source, task)
        finally:
            self._sending -= 1
            self._changes.beat()
