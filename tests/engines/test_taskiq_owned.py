"""Schedulers of Taskiq in two releases, on a Redis that both send to."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis
from taskiq import TaskiqScheduler
from taskiq.api import run_scheduler_task
from taskiq.schedule_sources import LabelScheduleSource
from taskiq_redis import ListQueueBroker

from drainmw import Drain
from drainmw.sources.taskiqowned import OwnedTaskiqClock
from tests.rig import begin_request, new_drain

pytestmark = pytest.mark.anyio


async def work() -> None:
    """Nobody receives it."""


@contextlib.asynccontextmanager
async def scheduled(url: str, runtime: Path, once: datetime) -> AsyncIterator[Drain]:
    """A release: a scheduler of two tasks, and who may run it."""
    drain = new_drain(app="shop", runtime_dir=runtime)
    broker = ListQueueBroker(url)
    broker.register_task(work, "often", schedule=[{"interval": 1}])
    broker.register_task(work, "once", schedule=[{"time": once}])
    scheduler = TaskiqScheduler(broker, [LabelScheduleSource(broker)])
    OwnedTaskiqClock(scheduler, drain.own("reports"))
    drain.ownership.start()
    task = asyncio.create_task(run_scheduler_task(scheduler, run_startup=True))
    try:
        yield drain
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await drain.ownership.stop()
        await broker.shutdown()


class Sent:
    """When which task came to the queue."""

    def __init__(self) -> None:
        self.often: list[float] = []
        self.once: list[float] = []

    async def watch(self, url: str) -> None:
        async with Redis.from_url(url) as redis:
            while True:
                popped = await redis.brpop(["taskiq"], timeout=1)
                if popped:
                    name = "once" if b'"once"' in popped[1] else "often"
                    getattr(self, name).append(time.time())


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not met():  # noqa: ASYNC110  # Redis tells, in the end
            await asyncio.sleep(0.005)


async def test_a_begin_hands_over_and_every_fire_is_sent_once(
    redis_url: str, tmp_path: Path
) -> None:
    """J8 and J9: also a single one that comes due once the old release is held."""
    sent = Sent()
    watching = asyncio.create_task(sent.watch(redis_url))
    once = datetime.now(UTC) + timedelta(seconds=2)
    places = (redis_url, tmp_path / "runtime", once)
    async with scheduled(*places) as blue:
        await until(lambda: blue.own("reports").is_mine)
        async with scheduled(*places) as green:
            await until(lambda: bool(sent.often))
            await blue.begin(begin_request())
            begun = time.time()
            await until(lambda: len(sent.often) > 2 and bool(sent.once))
            assert green.own("reports").generation == 2
            await blue.ended
            assert str(blue.phase) == "drained"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    (fired,) = sent.once
    assert fired > begun
    seconds = [math.floor(at) for at in sent.often]
    assert seconds == list(range(seconds[0], seconds[0] + len(seconds)))
