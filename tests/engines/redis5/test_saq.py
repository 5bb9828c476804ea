"""The recipe of SAQ on a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from saq import Queue

from drainmw import Counts, SourceUnavailable
from tests.engines.journal import Journal, work_async
from tests.engines.recipes import recipe
from tests.engines.scenario import (
    SLOTS,
    all_ran_once,
    hand_over,
    hold_in_the_middle,
    holds_at_random,
)

pytestmark = pytest.mark.anyio

Worker = recipe("saq")["DrainableWorker"]


async def job(_ctx: Any, *, path: str, name: str, seconds: float) -> None:
    await work_async(path, name, seconds)


class Saq:
    """A driver: a worker of this loop."""

    def __init__(self, queue: Queue, journal: Journal) -> None:
        self.queue = queue
        self.source = Worker(queue, [job], concurrency=SLOTS)
        self._journal = journal

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        given = {"path": str(self._journal.path), "seconds": seconds}
        for id in ids:
            await self.queue.enqueue("job", name=id, **given)


@contextlib.asynccontextmanager
async def here(url: str, journal: Journal) -> AsyncIterator[Saq]:
    queue = Queue.from_url(url)
    await queue.connect()
    engine = Saq(queue, journal)
    task = asyncio.create_task(engine.source.start())
    try:
        yield engine
    finally:
        await engine.source.stop()
        await task
        await queue.disconnect()


async def test_it_passes_the_scenario(redis_url: str, journal: Journal) -> None:
    async with here(redis_url, journal) as engine:
        await hold_in_the_middle(engine, journal, prompt=0.5, may_start=True)


async def test_it_passes_at_random(redis_url: str, journal: Journal) -> None:
    """J4: what a late pull brings goes back."""
    async with here(redis_url, journal) as engine:
        await holds_at_random(engine, journal, may_start=True)


async def test_what_one_release_has_not_started_another_runs(
    redis_url: str, journal: Journal
) -> None:
    """J1: nothing of the new one is paused."""
    async with here(redis_url, journal) as blue, here(redis_url, journal) as green:
        await hand_over(blue, green, journal)


async def test_idle_slots_give_back_what_comes_while_they_are_held(
    redis_url: str, journal: Journal
) -> None:
    """J4: each would run one job more."""
    async with here(redis_url, journal) as engine:
        await asyncio.sleep(0.1)
        assert engine.source.count() == Counts()
        await engine.source.hold()
        assert engine.source.count() == Counts(jobs=SLOTS)
        ids = [f"job-{n}" for n in range(SLOTS)]
        await engine.enqueue(ids, 0.0)
        await engine.source.settled()
        assert engine.source.handed_back >= 1
        assert journal.started() == []
        assert await engine.queue.count("queued") == SLOTS
        await engine.source.release()
        await all_ran_once(journal, ids)


async def test_a_job_whose_outcome_is_not_stored_is_unknown(
    redis_url: str, journal: Journal
) -> None:
    """J5: whether its broker knows what it did is not to be told."""
    async with here(redis_url, journal) as engine:

        async def fails(*_: object, **_options: object) -> None:
            raise ConnectionError("the broker is gone")

        engine.queue.finish = fails
        await engine.enqueue(["x"], 0.1)
        await journal.until(journal.started, "it runs")
        await engine.source.hold()
        with pytest.raises(SourceUnavailable, match="broker is gone"):
            await engine.source.settled()


async def test_a_thread_counts_until_it_ends_though_its_timeout_has_passed(
    redis_url: str, journal: Journal
) -> None:
    """SAQ has its outcome by then, and nothing ends the thread."""
    go, begun = threading.Event(), threading.Event()

    def block(_ctx: Any) -> None:
        begun.set()
        go.wait(5)

    async with here(redis_url, journal) as engine:
        engine.source.functions["block"] = block
        failed = await engine.queue.enqueue("block", timeout=1, retries=1)
        await asyncio.to_thread(begun.wait, 5)
        await engine.source.hold()
        assert failed is not None
        await failed.refresh(until_complete=5)
        settled = asyncio.create_task(engine.source.settled())
        await asyncio.sleep(0.1)
        assert engine.source.count() == Counts(jobs=1)
        assert not settled.done()
        go.set()
        async with asyncio.timeout(5):
            await settled
        assert engine.source.count() == Counts()
