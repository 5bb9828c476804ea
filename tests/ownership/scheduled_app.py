"""An app with a scheduler of APScheduler in each process, of which one fires.

It has the same job in memory, and in a file that all processes share.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from starlette.applications import Starlette

from drainmw import Drain, DrainMiddleware, Owned
from drainmw.sources.apscheduler import APSchedulerSource
from tests.ownership.journal import write

EVERY = 0.1  # seconds

stores = {
    "memory": MemoryJobStore(),
    "shared": SQLAlchemyJobStore(f"sqlite:///{os.environ['JOBS']}"),
}
scheduler: Any = AsyncIOScheduler(jobstores=stores, timezone=UTC)
drain = Drain()
source = APSchedulerSource(scheduler, standby=True)
drain.add_source(Owned(source, drain.own("reports")))


async def fire(store: str) -> None:
    write(store, datetime.now(UTC))


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    for store in stores:
        scheduler.add_job(
            fire,
            "interval",
            args=[store],
            seconds=EVERY,
            id=store,
            jobstore=store,
            replace_existing=True,
        )
    scheduler.start()
    yield
    scheduler.shutdown()


app = DrainMiddleware(Starlette(lifespan=lifespan), drain)
