"""Celery's beat, in a process of its own, on a Valkey."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from drainmw.errors import SourceUnavailable
from drainmw.sources.base import Counts
from drainmw.sources.celery import CeleryBeat
from tests.engines.celery_app import EVERY, FIRED, made
from tests.engines.celery_nodes import asked, beat, held

pytestmark = pytest.mark.anyio


class Fires:
    """What beat has sent."""

    def __init__(self, broker: "redis.Redis") -> None:
        self._broker = broker

    @property
    def number(self) -> int:
        return int(self._broker.llen(FIRED))

    async def reach(self, number: int) -> float:
        """Wait for that many; when it was."""
        async with asyncio.timeout(10):
            while True:
                if self.number >= number:
                    return time.monotonic()
                await asyncio.sleep(0.01)


@pytest.fixture
def fires(redis_url: str) -> Iterator[Fires]:
    with redis.Redis.from_url(redis_url) as broker:
        yield Fires(broker)


@pytest.fixture
def blue(redis_url: str) -> CeleryBeat:
    return CeleryBeat(made(redis_url), "celerybeat@blue")


@pytest.fixture
def schedule(tmp_path: Path) -> str:
    return str(tmp_path / "schedule")


async def test_what_comes_due_during_a_hold_is_sent_once(
    redis_url: str, fires: Fires, blue: CeleryBeat, schedule: str
) -> None:
    """J8: by the same release; or by the next, with the schedule of the stopped one."""
    with beat(redis_url, schedule) as process:
        await fires.reach(1)
        await held(blue)
        await blue.settled()
        await asyncio.sleep(2.2 * EVERY)
        assert fires.number == 1
        async with asyncio.timeout(5):  # beat looks once a second
            while blue.overdue != 1:
                assert await asked(blue) == Counts()
                await asyncio.sleep(0.05)
        assert fires.number == 1
        await blue.release()
        sent_at = await fires.reach(2)
        assert await fires.reach(3) - sent_at > EVERY / 2
        assert fires.number == 3
        await held(blue)
        await blue.settled()
        process.signal()
        process.exit_code()
    await asyncio.sleep(EVERY)
    before = fires.number
    with beat(redis_url, schedule, "celerybeat@green"):
        sent_at = await fires.reach(before + 1)
        assert await fires.reach(before + 2) - sent_at > EVERY / 2


async def test_a_beat_that_comes_up_during_a_hold_comes_up_held(
    redis_url: str, fires: Fires, blue: CeleryBeat, schedule: str
) -> None:
    holding = asyncio.create_task(blue.hold())
    await asyncio.sleep(0)
    with beat(redis_url, schedule):
        with pytest.raises(SourceUnavailable, match="no answer from"):
            await holding
        await asyncio.sleep(1.5 * EVERY)
        assert fires.number == 0
        await held(blue)
        await blue.release()
        await fires.reach(1)
