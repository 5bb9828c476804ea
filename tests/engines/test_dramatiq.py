"""The recipe of Dramatiq on a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

pytest.importorskip("dramatiq")

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from drainmw import Counts, SourceUnavailable
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

Drainable = recipe("dramatiq")["Drainable"]


@pytest.fixture(autouse=True)
def short_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the variable dramatiq_restart_delay would set it."""
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)


class Dramatiq:
    """A driver: a worker in threads of this process."""

    def __init__(self, url: str, journal: Journal) -> None:
        self.broker = RedisBroker(url=url)  # type: ignore[no-untyped-call]
        self.gate: Any = Drainable()
        self.broker.add_middleware(self.gate)
        self.job = dramatiq.actor(broker=self.broker)(work)
        self.source = ThreadedSource("dramatiq", "pull", self.gate, count_blocks=False)
        self.worker = dramatiq.Worker(
            self.broker, worker_threads=SLOTS, worker_timeout=50
        )
        self._journal = journal

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        for id in ids:
            self.job.send(str(self._journal.path), id, seconds)


@contextlib.asynccontextmanager
async def here(
    url: str, journal: Journal, *, starts: bool = True
) -> AsyncIterator[Dramatiq]:
    engine = Dramatiq(url, journal)
    if starts:
        engine.worker.start()
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.worker.stop)
        engine.broker.close()
        engine.broker.client.connection_pool.disconnect()  # also of a thread that died


async def test_it_passes_the_scenario(redis_url: str, journal: Journal) -> None:
    async with here(redis_url, journal) as engine:
        await hold_in_the_middle(engine, journal, prompt=0.3, may_start=True)
        assert engine.gate.handed_back > 0


async def test_it_passes_at_random(redis_url: str, journal: Journal) -> None:
    """J4: what was fetched ahead goes back."""
    async with here(redis_url, journal) as engine:
        await holds_at_random(engine, journal, may_start=True)


async def test_what_one_release_has_not_started_another_runs(
    redis_url: str, journal: Journal
) -> None:
    """J1: nothing of the new one is paused."""
    async with here(redis_url, journal) as blue, here(redis_url, journal) as green:
        await hand_over(blue, green, journal)


async def test_a_worker_that_is_born_while_it_is_held_starts_held(
    redis_url: str, journal: Journal
) -> None:
    async with here(redis_url, journal, starts=False) as engine:
        await engine.source.hold()
        await engine.source.settled()
        engine.worker.start()
        await engine.enqueue(["early"], 0.0)
        await asyncio.sleep(0.3)
        assert journal.started() == []
        assert engine.source.count() == Counts()
        await engine.source.release()
        await all_ran_once(journal, ["early"])


class Slow(dramatiq.Middleware):
    """Comes before a message is known to be in process."""

    def __init__(self) -> None:
        self.entered = threading.Event()

    def before_process_message(self, broker: object, message: object) -> None:
        self.entered.set()
        time.sleep(0.3)


async def test_a_message_that_was_just_taken_counts_when_the_hold_returns(
    redis_url: str, journal: Journal
) -> None:
    """J4."""
    async with here(redis_url, journal) as engine:
        slow = Slow()
        engine.broker.add_middleware(slow, before=Drainable)
        await engine.enqueue(["x"], 0.2)
        await asyncio.to_thread(slow.entered.wait)
        await engine.source.hold()
        assert engine.source.count() == Counts(jobs=1)
        await engine.source.settled()
        await all_ran_once(journal, ["x"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_died_is_unknown(redis_url: str, journal: Journal) -> None:
    """J5."""
    async with here(redis_url, journal) as engine:
        await engine.enqueue(["x"], 0.1)
        await journal.until(journal.started, "it runs")
        consumers = dict(engine.worker.consumers)
        engine.worker.consumers.clear()
        await journal.until(lambda: not all_alive(engine), "a thread is dead")
        engine.worker.consumers.update(consumers)
        for ask in (engine.source.hold, engine.source.settled):
            with pytest.raises(SourceUnavailable, match="threads have died: Thread-"):
                await asyncio.wait_for(ask(), 2)
        with pytest.raises(SourceUnavailable, match="have died"):
            engine.source.count()


def all_alive(engine: Dramatiq) -> bool:
    return all(thread.is_alive() for thread in engine.worker.workers)


async def test_one_that_is_added_in_a_drain_and_starts_at_once_runs_nothing(
    redis_url: str, journal: Journal
) -> None:
    """Its threads do not wait until the event loop comes to the hold."""
    release = Release()
    await release.client.begin()
    async with here(redis_url, journal, starts=False) as engine:
        await engine.enqueue(["x"], 0.0)
        release.drain.add_source(engine.source)
        engine.worker.start()
        time.sleep(0.2)  # noqa: ASYNC251 the loop is busy with the startup
        assert journal.started() == []
        await release.client.resume()
        await all_ran_once(journal, ["x"])
