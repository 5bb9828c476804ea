"""Workers of arq, in this event loop and in processes of their own.

    python -m tests.engines.redis5.arqs URL SOCKETS NAME

runs one until a signal, with an agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from arq import cron
from arq.connections import ArqRedis, RedisSettings, create_pool
from arq.worker import Worker

from drainmw.sources.arq import ArqWorker, run_worker
from drainmw.sources.base import WorkSource
from drainmw.sources.remote import RemoteSource
from tests.engines.journal import Journal, work_async
from tests.engines.scenario import SLOTS
from tests.processes import Process, running

POLL = 0.02  # seconds between two looks into the queue


async def job(ctx: dict[str, Any], path: str, id: str, seconds: float) -> None:
    await work_async(path, id, seconds)


async def tick(ctx: dict[str, Any]) -> None:
    """A cron job; its id tells which of its fires it is."""
    await work_async(ctx["journal"], ctx["job_id"], 0.0)


def settings(url: str, **options: Any) -> dict[str, Any]:
    """Of a worker with short pauses, as tests want it."""
    return {
        "functions": [job],
        "redis_settings": RedisSettings.from_dsn(url),
        "max_jobs": SLOTS,
        "poll_delay": POLL,
        "job_completion_wait": 10,
        "log_results": False,
        **options,
    }


class Arq:
    """A driver: the queue, and the source of those who work on it."""

    def __init__(self, pool: ArqRedis, source: WorkSource, journal: Journal) -> None:
        self.pool = pool
        self.source = source
        self._journal = journal

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        path = str(self._journal.path)
        for id in ids:
            await self.pool.enqueue_job("job", path, id, seconds, _job_id=id)


class Here(Arq):
    """With one worker, in this loop."""

    source: ArqWorker

    def __init__(self, pool: ArqRedis, worker: Worker, journal: Journal) -> None:
        super().__init__(pool, ArqWorker(worker), journal)
        self.worker = worker

    def start(self) -> None:
        """Run the worker, in a task of its own."""
        self.task = asyncio.create_task(self.worker.async_run())


class Apart(Arq):
    """With workers in processes of their own, which `ends` ends."""

    source: RemoteSource

    def __init__(
        self,
        pool: ArqRedis,
        journal: Journal,
        url: str,
        sockets: Path,
        ends: contextlib.ExitStack,
    ) -> None:
        super().__init__(pool, RemoteSource("arq", "pull", sockets), journal)
        self._program = ("-m", "tests.engines.redis5.arqs", url, str(sockets))
        self._ends = ends

    def start(self, name: str) -> Process:
        """Start one, and wait until it works."""
        process = self._ends.enter_context(running(*self._program, name))
        process.out.wait_for_text("works\n")
        return process


@contextlib.asynccontextmanager
async def queue(url: str) -> AsyncIterator[ArqRedis]:
    pool = await create_pool(RedisSettings.from_dsn(url))
    try:
        yield pool
    finally:
        await pool.aclose()


@contextlib.asynccontextmanager
async def here(
    url: str, journal: Journal, *, starts: bool = True, **options: Any
) -> AsyncIterator[Here]:
    """A worker of this loop; at the end it is closed, whatever became of it."""
    options = settings(url, handle_signals=False, **options)
    options["ctx"] = {"journal": str(journal.path)}
    async with queue(url) as pool:
        engine = Here(pool, Worker(**options), journal)
        if starts:
            engine.start()
        try:
            yield engine
        finally:
            await engine.worker.close()
            if hasattr(engine, "task"):
                await asyncio.gather(engine.task, return_exceptions=True)


def every_second() -> Any:
    """A cron job of that kind, at the first microsecond of each."""
    return cron(tick, name="tick", second=set(range(60)), microsecond=0)


def once_within(seconds: float) -> Any:
    """One that is due at the full second before then, and in a year again."""
    now = datetime.fromtimestamp(datetime.now().timestamp() + seconds)
    return cron(
        tick,
        name="once",
        month=now.month,
        day=now.day,
        hour=now.hour,
        minute=now.minute,
        second=now.second,
        microsecond=0,
    )


async def tell(_ctx: dict[str, Any]) -> None:
    print("works", flush=True)


if __name__ == "__main__":
    own = settings(sys.argv[1], on_startup=tell)
    run_worker(own, sys.argv[2], name=sys.argv[3])
