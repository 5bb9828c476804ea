"""Schedulers of APScheduler with their jobs in a journal, as drivers of the scenario.

They have four slots by the way their jobs are due: four at a time, and the next
four when those have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import event

from drainmw.sources.apscheduler import APSchedulerSource
from tests.engines.journal import Journal
from tests.engines.scenario import SLOTS
from tests.rig import close_databases

IN_LOOP, IN_THREADS = "asyncio", "threads"
SPACE = 1.5  # from four jobs to the next, in the length of a job
BODIES = {
    IN_LOOP: "tests.engines.journal:work_async",
    IN_THREADS: "tests.engines.journal:work",
}


class Scheduled:
    """One scheduler and its source."""

    def __init__(self, journal: Journal, kind: str, file: Path | None = None) -> None:
        """Its jobs are in that file of SQLite, or in memory."""
        stores = {"default": _database(file) if file else MemoryJobStore()}
        self.scheduler: Any
        if kind == IN_LOOP:
            self.scheduler = AsyncIOScheduler(jobstores=stores, timezone=UTC)
        else:
            executors = {"default": ThreadPoolExecutor(SLOTS)}
            self.scheduler = BackgroundScheduler(
                jobstores=stores, executors=executors, timezone=UTC
            )
        self.source = APSchedulerSource(self.scheduler)
        self._journal = journal
        self._body = BODIES[kind]

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        await asyncio.to_thread(self._enqueue, ids, seconds)

    def _enqueue(self, ids: Sequence[str], seconds: float) -> None:
        for number, id in enumerate(ids):
            self.add(id, seconds, due_in=number // SLOTS * seconds * SPACE)

    def add(self, id: str, seconds: float, *, due_in: float = 0.0) -> None:
        """A job that runs once; it is lost if it is run more than a second late."""
        self.scheduler.add_job(
            self._body,
            "date",
            run_date=datetime.now(UTC) + timedelta(seconds=due_in),
            args=[str(self._journal.path), id, seconds],
            id=id,
        )


def _database(file: Path) -> SQLAlchemyJobStore:
    store = SQLAlchemyJobStore(f"sqlite:///{file}")
    event.listen(store.engine, "connect", _wait_for_no_disk)
    return store


def _wait_for_no_disk(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")


@asynccontextmanager
async def started(*engines: Scheduled) -> AsyncIterator[None]:
    """Start their schedulers, and shut them down at the end."""
    try:
        for engine in engines:
            engine.scheduler.start()
        yield
    finally:
        for engine in engines:
            if engine.scheduler.running:
                await asyncio.to_thread(engine.scheduler.shutdown)
            close_databases(engine.scheduler)
        await asyncio.sleep(0)  # one in a loop shuts down in its next turn
