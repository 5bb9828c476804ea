"""The Procrastinate app of the tests, and its workers in a process of their own.

The command `procrastinate --app tests.engines.procrastinated.app worker` imports it;
it reads where the database is, and where to answer, from its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

from procrastinate import App, PsycopgConnector
from procrastinate.types import JSONValue

from drainmw.sources.base import WorkSource
from drainmw.sources.procrastinate import ProcrastinateWorkers, drainable
from tests.engines.journal import Journal, work, work_async
from tests.engines.scenario import SLOTS

URL = "TESTS_POSTGRES"
SOCKETS = "TESTS_SOCKETS"


def made(url: str) -> App:
    """An app with the jobs of the tests."""
    app = App(connector=PsycopgConnector(conninfo=url, min_size=2, max_size=8))
    app.task(name="work")(work_async)
    app.task(name="block")(work)
    return app


class Release:
    """An app whose workers run in this event loop, as the scenario drives it."""

    def __init__(self, app: App, journal: Journal) -> None:
        self.app = app
        self.source: WorkSource = ProcrastinateWorkers(app)
        self.task = "work"
        self._journal = journal
        self._workers: list[asyncio.Task[None]] = []

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        await enqueue(self.app, self._journal, ids, seconds, self.task)

    def start(self, slots: int = SLOTS, **options: Any) -> asyncio.Task[None]:
        """Run one more worker."""
        given = {"fetch_job_polling_interval": 0.2, **options}
        worker = self.app.run_worker_async(
            concurrency=slots,
            install_signal_handlers=False,
            shutdown_graceful_timeout=0.05,
            **given,
        )
        self._workers.append(asyncio.create_task(worker))
        return self._workers[-1]

    async def stop(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)


async def enqueue(
    app: App, journal: Journal, ids: Sequence[str], seconds: float, task: str = "work"
) -> None:
    path = str(journal.path)
    given: list[dict[str, JSONValue]] = [
        {"path": path, "id": id, "seconds": seconds} for id in ids
    ]
    await app.tasks[task].batch_defer_async(*given)


@contextlib.asynccontextmanager
async def release(url: str, journal: Journal) -> AsyncIterator[Release]:
    """A release that is open, and closed at the end; no worker runs yet."""
    app = made(url)
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        one = Release(app, journal)
        try:
            yield one
        finally:
            await one.stop()


if URL in os.environ:
    app = drainable(made(os.environ[URL]), os.environ[SOCKETS])
