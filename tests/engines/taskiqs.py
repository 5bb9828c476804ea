"""Receivers of Taskiq, in this event loop and in processes of their own.

    taskiq worker tests.engines.taskiqs:broker --receiver tests.engines.taskiqs:Apart

runs some by Taskiq's own command, with an agent each; what it needs to know stands
in the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from taskiq.abc.broker import AsyncBroker
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker, RedisStreamBroker

from drainmw.sources.base import WorkSource
from drainmw.sources.taskiq import TaskiqWorkers
from tests.engines.journal import Journal, work_async
from tests.engines.scenario import SLOTS

MakeBroker = Callable[[str], AsyncBroker]


def on_a_list(url: str) -> AsyncBroker:
    return with_the_job(ListQueueBroker(url))


def on_a_stream(url: str, **options: Any) -> AsyncBroker:
    # From the first entry on, whoever comes first to the stream.
    options = {"consumer_id": "0", "xread_block": 500, **options}
    return with_the_job(RedisStreamBroker(url, **options))


def with_the_job(broker: AsyncBroker) -> AsyncBroker:
    broker.register_task(work_async, "job")
    return broker


class Taskiq:
    """A driver: a broker, and the source of those who work on it."""

    def __init__(
        self, broker: AsyncBroker, source: WorkSource, journal: Journal
    ) -> None:
        self.broker = broker
        self.source = source
        self._journal = journal

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        job = self.broker.find_task("job")
        assert job is not None
        for id in ids:
            kicker = job.kicker().with_task_id(id)
            await kicker.kiq(str(self._journal.path), id, seconds)


class Here(Taskiq):
    """With a receiver in this loop."""

    source: TaskiqWorkers

    def __init__(self, broker: AsyncBroker, journal: Journal, **options: Any) -> None:
        super().__init__(broker, TaskiqWorkers(broker), journal)
        self._options = {"max_async_tasks": SLOTS, "sync_workers": 1, **options}
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen, in a task of its own."""
        listening = run_receiver_task(
            self.broker, receiver_cls=self.source.receiver, **self._options
        )
        self.task = asyncio.create_task(listening)


@contextlib.asynccontextmanager
async def here(
    make: MakeBroker, url: str, journal: Journal, *, starts: bool = True, **options: Any
) -> AsyncIterator[Here]:
    """A receiver of this loop; at the end it is cancelled."""
    broker = make(url)
    await broker.startup()
    engine = Here(broker, journal, **options)
    if starts:
        engine.start()
    try:
        yield engine
    finally:
        if engine.task is not None:
            engine.task.cancel()
            await asyncio.gather(engine.task, return_exceptions=True)
        await broker.shutdown()


if "TASKIQ_URL" in os.environ:
    broker = on_a_stream(os.environ["TASKIQ_URL"])
    Apart = TaskiqWorkers(broker).receiver_with_agent(os.environ["TASKIQ_AGENTS"])
