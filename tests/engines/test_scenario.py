"""The scenario passes an engine that keeps the promise, and no other."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence

import pytest

from drainmw.sources.base import Counts, Intake
from tests.engines.journal import Journal, work_async
from tests.engines.scenario import (
    SLOTS,
    hand_over,
    hold_in_the_middle,
    holds_at_random,
)

pytestmark = pytest.mark.anyio

FAULTS = (
    *("starts one more", "goes on", "waits for work", "counts nothing"),
    *("settles at once", "loses", "repeats", "stays held"),
)


class Pool:
    """An engine and its adapter in one: `SLOTS` loops that pull from a queue."""

    name = "pool"
    intake: Intake = "pull"

    def __init__(self, journal: Journal, queue: deque[tuple[str, float]]) -> None:
        self.source = self
        self.fault = ""
        self._path = str(journal.path)
        self._queue = queue
        self._open = True
        self._spare = 0  # jobs that may start although it is held
        self._leased: set[str] = set()
        self._idle = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(SLOTS):
                group.create_task(self._slot())

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        self._queue.extend((id, seconds) for id in ids)

    async def hold(self) -> None:
        self._open = self.fault == "goes on"
        self._spare = self.fault == "starts one more"
        if self.fault == "waits for work":
            await self.settled()
        if self.fault == "loses" and self._queue:
            self._queue.pop()
        if self.fault == "repeats" and self._queue:
            self._queue.append(self._queue[-1])

    def count(self) -> Counts:
        return Counts(jobs=0 if self.fault == "counts nothing" else len(self._leased))

    async def settled(self) -> None:
        if self.fault == "settles at once":
            self._leased.clear()
        while self._leased:
            self._idle.clear()
            await self._idle.wait()

    async def release(self) -> None:
        self._open = self.fault != "stays held"

    async def _slot(self) -> None:
        while True:
            if not self._queue or not (self._open or self._spare):
                await asyncio.sleep(0.002)
                continue
            self._spare = 0
            id, seconds = self._queue.popleft()
            self._leased.add(id)
            await work_async(self._path, id, seconds)
            self._leased.discard(id)
            self._idle.set()


@contextlib.asynccontextmanager
async def pools(journal: Journal, number: int = 1) -> AsyncIterator[list[Pool]]:
    queue: deque[tuple[str, float]] = deque()
    made = [Pool(journal, queue) for _ in range(number)]
    running = [asyncio.create_task(pool.run()) for pool in made]
    yield made
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_an_engine_that_keeps_the_promise_passes(journal: Journal) -> None:
    async with pools(journal) as (pool,):
        await hold_in_the_middle(pool, journal, seconds=0.05)


async def test_it_passes_at_random_too(journal: Journal) -> None:
    async with pools(journal) as (pool,):
        await holds_at_random(pool, journal)


async def test_its_work_goes_to_another_instance(journal: Journal) -> None:
    async with pools(journal, 2) as (blue, green):
        await hand_over(blue, green, journal, seconds=0.05)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_broken_promise_is_found(
    journal: Journal, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.engines.journal.PATIENCE", 1.0)
    monkeypatch.setattr("tests.engines.scenario.SILENCE", 0.05)
    async with pools(journal) as (pool,):
        pool.fault = fault
        seconds = 0.3 if fault == "waits for work" else 0.05
        with pytest.raises(AssertionError):
            await hold_in_the_middle(pool, journal, seconds=seconds, prompt=0.04)


async def test_a_hold_that_is_no_barrier_is_found_at_random(journal: Journal) -> None:
    async with pools(journal) as (pool,):
        pool.fault = "starts one more"
        with pytest.raises(BaseExceptionGroup) as found:
            await holds_at_random(pool, journal)
        assert found.group_contains(AssertionError)
