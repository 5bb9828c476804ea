"""Workers and beats of Celery in processes of their own, and who asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from drainmw.errors import SourceUnavailable
from drainmw.sources.base import Counts
from drainmw.sources.celery import CeleryWorkers
from drainmw.sources.threaded import ThreadedSource
from tests.engines.celery_app import made
from tests.engines.journal import Journal
from tests.engines.scenario import SLOTS
from tests.processes import Process, running

QUIET = ("--without-mingle", "--without-gossip", "--without-heartbeat")


class Workers:
    """The driver: an app that enqueues, and the adapter of one worker."""

    def __init__(
        self,
        broker: str,
        journal: Journal,
        node: str = "blue@test",
        task: str = "work",
        source: CeleryWorkers | None = None,
    ) -> None:
        self.app = made(broker)
        self.source = source or CeleryWorkers(self.app, [node])
        self._made_from = (broker, journal, node)
        self._task = self.app.tasks[task]
        self._path = str(journal.path)

    def of(self, task: str) -> Workers:
        """The same, with jobs of another task."""
        return Workers(*self._made_from, task=task, source=self.source)

    async def enqueue(
        self, ids: Sequence[str], seconds: float, countdown: float | None = None
    ) -> None:
        """In this order, to be run after that many seconds."""
        await self.send(ids, seconds, countdown)

    async def send(
        self, ids: Sequence[str], seconds: float, countdown: float | None = None
    ) -> list[str]:
        """Enqueue them; gives the ids that Celery made."""
        return await asyncio.to_thread(self._send, ids, seconds, countdown)

    def _send(
        self, ids: Sequence[str], seconds: float, countdown: float | None
    ) -> list[str]:
        called = ((self._path, id, seconds) for id in ids)
        results = (self._task.apply_async(c, countdown=countdown) for c in called)
        return [result.id for result in results]


async def asked(source: ThreadedSource) -> Counts:
    """Its count, if there is an answer."""
    answer = source.count()
    assert not isinstance(answer, Counts)
    return await answer


async def held(source: ThreadedSource) -> None:
    """Hold it, as a drain does: it is asked again while it gives no answer."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await source.hold()
            except SourceUnavailable:
                await asyncio.sleep(0.02)


@contextmanager
def worker(
    broker: str,
    node: str = "blue@test",
    *options: str,
    pool: str = "threads",
    ready: str = "ready.",
    **variables: str,
) -> Iterator[Process]:
    """A worker that has come up."""
    arguments = ("worker", "-n", node, "-P", pool, "-c", str(SLOTS), "-l", "INFO")
    with _celery(broker, *arguments, *QUIET, *options, **variables) as process:
        process.err.wait_for_text(ready)
        yield process


@contextmanager
def beat(
    broker: str, schedule: str, node: str = "celerybeat@blue"
) -> Iterator[Process]:
    """A beat that has come up, with its schedule in that file."""
    arguments = ("beat", "-n", node, "-s", schedule, "-l", "INFO", "--pidfile=")
    with _celery(broker, *arguments) as process:
        process.err.wait_for_text("beat: Starting...")
        yield process


@contextmanager
def _celery(broker: str, *arguments: str, **variables: str) -> Iterator[Process]:
    command = ("-m", "celery", "-A", "tests.engines.celery_app", *arguments)
    with running(*command, environment={"TEST_BROKER": broker, **variables}) as process:
        yield process
