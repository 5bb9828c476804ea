"""The recipe of Huey on a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

pytest.importorskip("huey")

from drainmw import Counts
from drainmw.sources.threaded import ThreadedSource
from tests.engines.journal import Journal, work
from tests.engines.recipes import recipe
from tests.engines.scenario import (
    SLOTS,
    all_ran_once,
    hand_over,
    hold_in_the_middle,
    holds_at_random,
)
from tests.rig import Release

pytestmark = pytest.mark.anyio

CODE = recipe("huey")


class Huey:
    """A driver: a consumer in threads of this process."""

    def __init__(self, url: str, journal: Journal) -> None:
        self.huey = CODE["DrainableHuey"]("app", url=url, results=False)
        self.job = self.huey.task(name="job")(work)
        self.source = ThreadedSource("huey", "pull", self.huey, count_blocks=False)
        self._journal = journal

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        for id in ids:
            self.job(str(self._journal.path), id, seconds)


@contextlib.asynccontextmanager
async def here(
    url: str, journal: Journal, before: Callable[[Huey], None] = lambda _: None
) -> AsyncIterator[Huey]:
    engine = Huey(url, journal)
    before(engine)
    consumer = CODE["QuietConsumer"](engine.huey, workers=SLOTS)
    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        await asyncio.to_thread(consumer.stop, graceful=True)
        await asyncio.to_thread(thread.join)
        engine.huey.storage.pool.disconnect()


async def test_it_passes_the_scenario(redis_url: str, journal: Journal) -> None:
    async with here(redis_url, journal) as engine:
        await hold_in_the_middle(engine, journal, prompt=0.5, may_start=True)


async def test_it_passes_at_random(redis_url: str, journal: Journal) -> None:
    """J4: what a late pull brings goes back."""
    async with here(redis_url, journal) as engine:
        await holds_at_random(engine, journal, rounds=6, may_start=True)


async def test_what_one_release_has_not_started_another_runs(
    redis_url: str, journal: Journal
) -> None:
    """J1: nothing of the new one is paused."""
    async with here(redis_url, journal) as blue, here(redis_url, journal) as green:
        await hand_over(blue, green, journal)


async def test_idle_threads_give_back_what_comes_while_they_are_held(
    redis_url: str, journal: Journal
) -> None:
    """J4 and J8: a task that was due while held runs once after it."""
    async with here(redis_url, journal) as engine:
        engine.job.schedule((str(journal.path), "due", 0.0), delay=0.5)
        await journal.until(engine.huey.scheduled_count, "a thread has put it there")
        await journal.until(lambda: engine.source.count() == Counts(), "all are idle")
        await engine.source.hold()
        # All but who looks up between two pulls, as each does once a second.
        pulling = engine.source.count()
        assert pulling in [Counts(jobs=n) for n in range(SLOTS // 2, SLOTS + 1)]
        await engine.enqueue(["x", "y"], 0.0)
        await engine.source.settled()
        assert engine.source.handed_back
        await asyncio.sleep(1.2)  # more than the scheduler's second
        assert journal.started() == []
        assert engine.huey.pending_count() == 2
        assert engine.huey.scheduled_count() == 1
        await engine.source.release()
        await all_ran_once(journal, ["x", "y", "due"])


async def test_one_that_is_added_in_a_drain_and_starts_at_once_runs_nothing(
    redis_url: str, journal: Journal
) -> None:
    """Its threads do not wait until the event loop comes to the hold."""
    release = Release()
    await release.client.begin()

    def add(engine: Huey) -> None:
        engine.job(str(journal.path), "x", 0.0)
        release.drain.add_source(engine.source)

    async with here(redis_url, journal, add):
        time.sleep(0.2)  # noqa: ASYNC251 the loop is busy with the startup
        assert journal.started() == []
        await release.client.resume()
        await all_ran_once(journal, ["x"])
