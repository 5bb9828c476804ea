"""Real schedulers, with jobs in memory and in SQLite, in a loop and in threads."""

import asyncio
from pathlib import Path

import pytest

from tests.engines.journal import Journal
from tests.engines.scenario import (
    Held,
    all_ran_once,
    hand_over,
    hold_in_the_middle,
    holds_at_random,
)
from tests.engines.schedulers import IN_LOOP, IN_THREADS, Scheduled, started

pytestmark = pytest.mark.anyio

KINDS = (IN_LOOP, IN_THREADS)
STORES = ("memory", "sqlite")


def engine(kind: str, store: str, journal: Journal, folder: Path) -> Scheduled:
    file = folder / f"{kind}.sqlite" if store == "sqlite" else None
    return Scheduled(journal, kind, file)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", KINDS)
async def test_it_passes_the_scenario(
    kind: str, store: str, journal: Journal, tmp_path: Path
) -> None:
    made = engine(kind, store, journal, tmp_path)
    async with started(made):
        await hold_in_the_middle(
            made, journal, jobs=24, seconds=0.1, prompt=0.5, may_start=True
        )


@pytest.mark.parametrize(
    ("kind", "store"), [(IN_LOOP, "memory"), (IN_THREADS, "sqlite")]
)
async def test_it_passes_at_random(
    kind: str, store: str, journal: Journal, tmp_path: Path
) -> None:
    made = engine(kind, store, journal, tmp_path)
    async with started(made):
        await holds_at_random(made, journal, rounds=6, may_start=True)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_jobs_of_a_store_go_to_another_release(
    kind: str, journal: Journal, tmp_path: Path
) -> None:
    """J1: nothing of the new one is paused, and the old one starts none."""
    file = tmp_path / "jobs.sqlite"
    blue, green = (Scheduled(journal, kind, file) for _ in range(2))
    async with started(blue, green):
        await hand_over(blue, green, journal, jobs=24, seconds=0.1)


async def test_what_comes_due_in_a_hold_runs_once_after_it(
    journal: Journal, tmp_path: Path
) -> None:
    """J8: though it is later than `misfire_grace_time` allows by then."""
    engines = [engine(k, s, journal, tmp_path) for k in KINDS for s in STORES]
    blue, green = (
        Scheduled(journal, IN_THREADS, tmp_path / "shared.sqlite") for _ in range(2)
    )
    ids = [f"resumed-{number}" for number in range(len(engines))]
    async with started(*engines, blue, green):
        held = [Held(made.source) for made in [*engines, blue, green]]
        for one in held:
            await one.hold()
        for made, id in zip(engines, ids, strict=True):
            made.add(id, 0.01, due_in=0.05)
        blue.add("moved", 0.01, due_in=0.05)
        await asyncio.sleep(1.2)
        assert journal.lines() == []
        for one in held[:-2]:
            await one.release()
        await held[-1].release()  # green; blue stays held
        await all_ran_once(journal, [*ids, "moved"])
