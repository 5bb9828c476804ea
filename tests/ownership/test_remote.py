"""Ownership across hosts: two releases on a Redis, and on a Postgres."""

from __future__ import annotations

import asyncio
import importlib
import time

import pytest

from drainmw import Clock, Drain, Owner
from drainmw import ownership as module
from drainmw.core.timetable import due_ms
from tests.rig import begin_request, new_drain
from tests.test_ownership import owning, until

BEAT = 0.05  # seconds
LASTS = 0.6

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["redis", "postgres"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A server of that kind; what takes seconds takes a tenth."""
    client = "redis" if request.param == "redis" else "psycopg"
    pytest.importorskip(client, reason=f"{client} is not installed")
    store = importlib.import_module(f"drainmw.stores.{request.param}")
    kind = store.RedisStore if request.param == "redis" else store.PostgresStore
    monkeypatch.setattr(kind, "lasts", LASTS)
    monkeypatch.setattr(kind, "pause", 0.02)
    monkeypatch.setattr(module, "BEAT", BEAT)
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    port = request.getfixturevalue("postgres_port")
    return f"postgresql://postgres@127.0.0.1:{port}/postgres"


class Instance:
    """One process of a release, here as one `Drain`."""

    def __init__(self, url: str, app: str) -> None:
        self.drain: Drain = new_drain(app=app, ownership=url)
        self.owner: Owner = self.drain.own("reports")
        self.dues: list[int] = []
        clock = Clock(self.owner)

        @clock.every(0.05, name="often")
        async def often(due: object) -> None:
            self.dues.append(due_ms(due))  # type: ignore[arg-type]  # a datetime


async def test_a_begin_hands_over_and_every_tick_is_fired_once(
    url: str, request: pytest.FixtureRequest
) -> None:
    blue, green = (Instance(url, request.node.name) for _ in range(2))
    async with owning(blue.drain):
        await until(lambda: len(blue.dues) > 2)
        async with owning(green.drain):
            await asyncio.sleep(2 * BEAT)
            assert green.dues == []
            await blue.drain.begin(begin_request())
            await until(lambda: len(green.dues) > 2)
            assert green.owner.generation == 2
            assert blue.drain.ownership.overlaps == green.drain.ownership.overlaps == []
    dues = blue.dues + green.dues
    assert dues == list(range(dues[0], dues[-1] + 1, 50))


async def test_a_silent_holder_is_taken_over_and_its_tick_reported(
    url: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    blue, green = (Instance(url, f"{request.node.name} s") for _ in range(2))
    async with owning(green.drain, blue.drain):
        await until(lambda: green.dues or blue.dues)
        old, new = (blue, green) if blue.dues else (green, blue)
        async with old.owner.tick(time.time(), "cut") as mine:
            assert mine
            task = old.drain.ownership._task
            assert task is not None
            task.cancel()  # as a process that hangs, or a host that is cut off
            last = len(old.dues)
            await until(lambda: new.dues, within=LASTS * 5)
            assert not old.owner.is_mine
            assert new.owner.generation == 2
            fired = len(old.dues)
            await asyncio.sleep(2 * BEAT)
            assert len(old.dues) == fired >= last
            assert "tick interrupted" in caplog.text
    dues = old.dues + new.dues
    assert dues == list(range(dues[0], dues[-1] + 1, 50))
