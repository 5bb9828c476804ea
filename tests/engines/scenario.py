"""What every engine's adapter must pass, whatever the engine.

A driver of the engine is written beside its tests: it starts the engine's
workers with `SLOTS` slots, makes the adapter, and enqueues jobs that call
`journal.work` or `journal.work_async`. Then

    await hold_in_the_middle(engine, journal)
    await holds_at_random(engine, journal)
    await hand_over(blue, green, journal)

One of them a test, since each wants an empty journal. A job's start is known by
what the job wrote, its count by what the adapter says.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Protocol

from drainmw.sources.base import Counts, WorkSource
from drainmw.sources.holds import Holds
from tests.engines.journal import PATIENCE, Journal

SLOTS = 4  # jobs that a driver's workers run at once
SILENCE = 0.4  # seconds in which nothing may start, once it has settled


class Engine(Protocol):
    """A driver: one instance of an engine, running, and its adapter."""

    @property
    def source(self) -> WorkSource: ...

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        """Hand the engine a job of that length for each id, in this order."""
        ...


class Held:
    """One hold of an engine's source, asked for as a drain asks."""

    def __init__(self, source: WorkSource) -> None:
        self.source = source
        self._holds = Holds(count_timeout=5.0)
        self._holds.add(source)

    async def hold(self) -> float:
        """Hold it; the instant at which the hold had returned."""
        async with asyncio.timeout(PATIENCE):
            self._holds.start(1, self.source.intake)
            await self._holds.held(self.source.intake)
        return time.monotonic()

    async def count(self) -> int:
        """Jobs and schedules together: an engine says which of them it has."""
        counts: Counts = await self._holds.counts()
        return sum(counts)

    async def settled(self) -> float:
        """The instant at which it had settled."""
        async with asyncio.timeout(PATIENCE):
            await self._holds.settled(self.source.intake)
        return time.monotonic()

    async def release(self) -> None:
        """Release it, and see that it let go."""
        await self._holds.release(PATIENCE)
        assert self._holds.stuck == [], self._holds.errors


async def hold_in_the_middle(
    engine: Engine,
    journal: Journal,
    *,
    jobs: int = 16,
    seconds: float = 0.2,
    while_held: int = 3,
    slots: int = SLOTS,
    prompt: float = 1.0,
    may_start: bool = False,
) -> None:
    """Hold while all slots are busy, settle, listen to the silence, release.

    `prompt` is how many seconds the hold may take: it waits for no running work.
    `may_start` is for engines whose accepted jobs cannot be handed back: those
    that were counted when the hold returned may start after it.
    """
    _check_empty(journal)
    held = Held(engine.source)
    first = [f"first-{n}" for n in range(jobs)]
    later = [f"later-{n}" for n in range(while_held)]
    await engine.enqueue(first, seconds)
    await journal.until(lambda: len(journal.started()) >= slots, "all slots busy")

    holding_from = time.monotonic()
    held_at = await held.hold()
    assert held_at - holding_from < prompt, "the hold took too long"
    counted = await held.count()
    assert counted >= len(journal.running()), f"counted {counted}\n{journal}"
    await engine.enqueue(later, seconds)
    settled_at = await held.settled()
    assert await held.count() == 0
    assert journal.running() == [], f"settled at {settled_at}\n{journal}"
    late = journal.started(since=held_at)
    allowed = counted if may_start else 0
    assert len(late) <= allowed, f"held at {held_at}, counted {counted}\n{journal}"
    done = len(journal.ended())
    assert done < jobs, "the hold came too late to show anything: more jobs"

    await asyncio.sleep(SILENCE)
    assert journal.started(since=settled_at) == [], f"settled {settled_at}\n{journal}"
    assert await held.count() == 0

    await held.release()
    await all_ran_once(journal, [*first, *later])


async def holds_at_random(
    engine: Engine,
    journal: Journal,
    *,
    rounds: int = 8,
    seconds: float = 0.025,
    pause: float = 0.02,
    seed: int = 1,
    may_start: bool = False,
) -> None:
    """Hold, settle and release again and again while jobs keep coming.

    Every third round is a hold whose drain gives up before it has settled.
    """
    _check_empty(journal)
    chance = random.Random(seed)
    held = Held(engine.source)
    async with _produced(engine, chance, seconds=seconds, pause=pause) as ids:
        await journal.until(journal.started, "the first job")
        for number in range(rounds):
            await asyncio.sleep(chance.uniform(0.0, 0.08))
            held_at = await held.hold()
            if number % 3 == 2:
                with suppress(TimeoutError):
                    async with asyncio.timeout(chance.uniform(0.0, seconds)):
                        await held.settled()
            else:
                await _is_silent(held, journal, held_at, chance, may_start)
            await held.release()
    await all_ran_once(journal, ids)


async def hand_over(
    blue: Engine,
    green: Engine,
    journal: Journal,
    *,
    jobs: int = 16,
    seconds: float = 0.2,
    slots: int = SLOTS,
) -> None:
    """Hold blue for good: what it has not started, green runs.

    Green is another instance on the same broker, held until blue has settled.
    """
    _check_empty(journal)
    old, new = Held(blue.source), Held(green.source)
    await new.hold()
    ids = [f"moved-{n}" for n in range(jobs)]
    await blue.enqueue(ids, seconds)
    await journal.until(lambda: len(journal.started()) >= slots, "blue's slots busy")
    await old.hold()
    await old.settled()
    assert await old.count() == 0
    assert journal.running() == [], str(journal)
    assert len(journal.ended()) < jobs, "blue did it all: more jobs"
    await new.release()
    await all_ran_once(journal, ids)
    assert await old.count() == 0


async def all_ran_once(journal: Journal, ids: Sequence[str]) -> None:
    """Wait until each of those has ended; none may be lost or run twice."""
    expected = Counter(ids)
    with suppress(AssertionError):  # the comparison below tells more
        await journal.until(lambda: expected <= Counter(journal.ended()), "all ended")
    await asyncio.sleep(0.05)  # for one that runs a second time
    started, ended = Counter(journal.started()), Counter(journal.ended())
    assert list(expected - ended) == [], f"lost\n{journal}"
    assert list(started - expected) == [], f"twice, or never enqueued\n{journal}"
    assert started == ended


def _check_empty(journal: Journal) -> None:
    assert journal.lines() == [], "a scenario needs a journal of its own"


async def _is_silent(
    held: Held,
    journal: Journal,
    held_at: float,
    chance: random.Random,
    may_start: bool,
) -> None:
    counted = await held.count()
    settled_at = await held.settled()
    assert await held.count() == 0
    assert journal.running() == [], f"settled {settled_at}\n{journal}"
    await asyncio.sleep(chance.uniform(0.02, 0.08))
    late = journal.started(since=held_at)
    assert len(late) <= (counted if may_start else 0), f"held at {held_at}\n{journal}"
    assert journal.started(since=settled_at) == [], f"settled {settled_at}\n{journal}"


@asynccontextmanager
async def _produced(
    engine: Engine, chance: random.Random, *, seconds: float, pause: float
) -> AsyncIterator[list[str]]:
    """Jobs that keep coming; gives the ids of those enqueued so far."""
    ids: list[str] = []
    numbers = count()
    enough = asyncio.Event()

    async def produce() -> None:
        while not enough.is_set():
            batch = [f"job-{next(numbers)}" for _ in range(chance.randint(1, 5))]
            await engine.enqueue(batch, seconds)
            ids.extend(batch)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await enough.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(produce(), name="producer")
        try:
            yield ids
        finally:
            enough.set()
