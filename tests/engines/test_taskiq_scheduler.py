"""Taskiq's scheduler, held: on the broker that needs no server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from taskiq import InMemoryBroker, TaskiqScheduler
from taskiq.api import run_scheduler_task
from taskiq.schedule_sources import LabelScheduleSource

from drainmw.errors import Misuse
from drainmw.sources.base import Counts
from drainmw.sources.owned import Owned
from drainmw.sources.taskiqscheduler import TaskiqClock
from tests.engines.journal import Journal, work_async
from tests.rig import new_drain

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def scheduled(
    journal: Journal, id: str, **when: object
) -> AsyncIterator[TaskiqClock]:
    """A scheduler of one job, and its source, which is held."""
    broker = InMemoryBroker()
    schedule = [{"args": [str(journal.path), id, 0.0], **when}]
    broker.register_task(work_async, "job", schedule=schedule)
    scheduler = TaskiqScheduler(broker, [LabelScheduleSource(broker)])
    clock = TaskiqClock(scheduler)
    await clock.hold()
    task = asyncio.create_task(run_scheduler_task(scheduler, run_startup=True))
    try:
        yield clock
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await broker.shutdown()


async def test_a_one_shot_that_is_due_while_held_runs_once_after_it(
    journal: Journal,
) -> None:
    """J8."""
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    async with scheduled(journal, "once", time=soon) as clock:
        await journal.until(lambda: clock.overdue, "it is due")
        await clock.settled()
        assert (clock.count(), clock.overdue) == (Counts(), 1)
        assert journal.lines() == []
        await clock.release()
        await journal.until(journal.ended, "it runs")
        await asyncio.sleep(1.1)
        assert journal.started() == ["once"]
        assert clock.overdue == 0


def test_it_cannot_be_owned_and_names_what_can() -> None:
    clock = TaskiqClock(TaskiqScheduler(InMemoryBroker(), []))
    with pytest.raises(Misuse, match="OwnedTaskiqClock"):
        Owned(clock, new_drain(ownership="off").own())


@pytest.mark.parametrize("wrong", [None, InMemoryBroker(), TaskiqScheduler])
def test_what_is_no_scheduler_is_refused(wrong: Any) -> None:
    with pytest.raises(Misuse, match=r"a TaskiqScheduler, not (None|InMem|the class)"):
        TaskiqClock(wrong)


async def test_a_task_that_is_being_sent_counts(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()
    kick = InMemoryBroker.kick

    async def slow(*args: object) -> None:
        await go.wait()
        await kick(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(InMemoryBroker, "kick", slow)
    async with scheduled(journal, "tick", interval=1) as clock:
        await journal.until(lambda: clock.overdue, "it is due")
        await clock.release()
        await asyncio.sleep(0.01)
        await clock.hold()
        assert clock.count() == Counts(schedules=1)
        settled = asyncio.create_task(clock.settled())
        await asyncio.sleep(0.01)
        assert not settled.done()
        go.set()
        await settled
        assert clock.count() == Counts()
