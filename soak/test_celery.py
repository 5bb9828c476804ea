"""Celery's workers and beat, held and released at random under load.

Figures are printed. With the URL of a RabbitMQ in TEST_AMQP, its queues are
emptied, and the workers run there, too.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from statistics import median

import pytest
import redis

from drainmw.sources.base import Counts
from drainmw.sources.celery import CeleryBeat, CeleryWorkers
from tests.engines.celery_app import EVERY, FIRED, made
from tests.engines.celery_nodes import Workers, beat, worker
from tests.engines.conftest import journal, redis_url, valkey_port
from tests.engines.journal import Journal
from tests.engines.scenario import Held, holds_at_random

__all__ = ["journal", "redis_url", "valkey_port"]

pytestmark = pytest.mark.anyio

ROUNDS = {"work": 120, "late": 30}  # 1,000 jobs, and more, go back unstarted (J4)
PAUSE = 0.05  # seconds between batches; held for most of the time it does no more
BEATS = 30


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["redis", "amqp"])
def broker(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    if "TEST_AMQP" not in os.environ:
        pytest.skip("TEST_AMQP names no RabbitMQ")
    made(os.environ["TEST_AMQP"]).control.purge()
    return os.environ["TEST_AMQP"]


class Timed(CeleryWorkers):
    """Notes when it was held and when it had settled."""

    def __init__(self, broker: str) -> None:
        super().__init__(made(broker), ["blue@test"])
        self.holds: list[tuple[float, float]] = []
        self.settles: list[tuple[float, float]] = []
        self.went_back = 0

    async def hold(self) -> None:
        began = time.monotonic()
        await super().hold()
        self.holds.append((began, time.monotonic()))

    async def settled(self) -> None:
        began = time.monotonic()
        await super().settled()
        self.settles.append((began, time.monotonic()))

    async def release(self) -> None:
        self.went_back += self.handed_back or 0
        await super().release()


@pytest.mark.parametrize("task", ROUNDS)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
async def test_no_job_is_lost_or_runs_twice(
    pool: str,
    task: str,
    broker: str,
    journal: Journal,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = Timed(broker)
    blue = Workers(broker, journal, task=task, source=source)
    with worker(broker, pool=pool):
        await holds_at_random(
            blue, journal, rounds=ROUNDS[task], pause=PAUSE, may_start=True
        )
    with capsys.disabled():
        print(f"\n{pool}, {task}: {figures(source, journal)}")


def figures(source: Timed, journal: Journal) -> str:
    lines = journal.lines()
    starts = [line.at for line in lines if line.what == "start"]
    ends = [line.at for line in lines if line.what == "end"]
    holds = [1000 * (held - began) for began, held in source.holds]
    lags = [
        1000 * (settled - max(began, *(end for end in ends if end < settled)))
        for began, settled in source.settles
    ]
    late = 0
    for began, settled in source.settles:
        held = max(at for _, at in source.holds if at <= began)
        late += sum(held < start < settled for start in starts)
    return (
        f"{len(ends)} jobs, {source.went_back} handed back, {len(holds)} holds of "
        f"{median(holds):.0f} ms, at most {max(holds):.0f}, settled {median(lags):.0f} "
        f"ms after the last job, at most {max(lags):.0f}; {late} began after a hold"
    )


async def test_a_beat_sends_nothing_while_it_is_held(
    redis_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chance = random.Random(1)
    schedule = str(tmp_path_factory.mktemp("beat") / "schedule")
    blue = Held(CeleryBeat(made(redis_url), "celerybeat@blue"))
    with redis.Redis.from_url(redis_url) as broker, beat(redis_url, schedule):
        holds, released = [], time.monotonic()
        for _ in range(BEATS):
            await asyncio.sleep(chance.uniform(0.0, EVERY))
            began = time.monotonic()
            holds.append(1000 * (await blue.hold() - began))
            await blue.settled()
            before = broker.llen(FIRED)
            await asyncio.sleep(chance.uniform(0.0, 2 * EVERY))
            assert broker.llen(FIRED) == before
            assert await blue.source.count() == Counts()  # type: ignore[misc]
            await blue.release()
        spent = time.monotonic() - released
        sent = broker.llen(FIRED)
    assert 1 <= sent <= spent / EVERY + 1
    with capsys.disabled():
        print(f"\nbeat: {sent} sent, holds of {median(holds):.0f} ms")
