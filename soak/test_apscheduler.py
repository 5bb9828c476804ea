"""Schedulers of APScheduler that are held again and again; figures are printed."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from datetime import UTC
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from drainmw.sources.apscheduler import APSchedulerSource
from tests.engines.journal import Journal
from tests.engines.scenario import holds_at_random
from tests.engines.schedulers import IN_LOOP, IN_THREADS, Scheduled, started

pytestmark = pytest.mark.anyio

CYCLES = 30
HOLDS = 1000


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("kind", [IN_LOOP, IN_THREADS])
async def test_nothing_is_lost_or_run_twice_over_thirty_holds(
    kind: str, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path / "journal")
    file = tmp_path / "jobs.sqlite" if store == "sqlite" else None
    made = Scheduled(journal, kind, file)
    async with started(made):
        await holds_at_random(made, journal, rounds=CYCLES, may_start=True)
    with capsys.disabled():
        jobs = len(journal.ended())
        print(f"\n{kind}, {store}: {CYCLES} holds, {jobs} jobs, 0 lost, 0 twice")


@pytest.mark.parametrize("kind", [IN_LOOP, IN_THREADS])
async def test_a_thousand_holds_catch_jobs_between_store_and_executor(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """J4: each such job runs, once, and is counted until it has."""
    scheduler: Any = AsyncIOScheduler(timezone=UTC)
    if kind == IN_THREADS:
        executors = {"default": ThreadPoolExecutor(4)}
        scheduler = BackgroundScheduler(executors=executors, timezone=UTC)
    source = APSchedulerSource(scheduler)
    chance = random.Random(4)
    begun: list[int] = []
    ended: list[tuple[int, float]] = []
    enough = threading.Event()
    added = 0

    def job(number: int) -> None:
        begun.append(number)
        time.sleep(0.001)
        ended.append((number, time.monotonic()))

    def produce() -> None:
        nonlocal added
        while not enough.is_set():
            if added - len(ended) < 20:
                scheduler.add_job(job, args=[added])
                added += 1
            else:
                time.sleep(0.001)

    holds, lags, caught = [], [], 0
    scheduler.start()
    producer = threading.Thread(target=produce)
    producer.start()
    for _ in range(HOLDS):
        await asyncio.sleep(chance.uniform(0, 0.005))
        holding_from = time.monotonic()
        await source.hold()
        holds.append(time.monotonic() - holding_from)
        counted, running = sum(source.count()), len(begun) - len(ended)
        assert running <= counted + 1  # one may have ended between the two
        caught += counted
        await source.settled()
        settled_at = time.monotonic()
        assert len(begun) == len(ended)
        lags.append(settled_at - max((at for _, at in ended), default=settled_at))
        before = len(begun)
        await asyncio.sleep(0.002)
        assert len(begun) == before
        await source.release()
    enough.set()
    await asyncio.to_thread(producer.join)
    async with asyncio.timeout(20):
        while len(ended) < added:  # noqa: ASYNC110 they are in threads
            await asyncio.sleep(0.01)
    await asyncio.to_thread(scheduler.shutdown)
    assert Counter(number for number, _ in ended) == Counter(range(added))
    with capsys.disabled():
        print(
            f"\n{kind}: {HOLDS} holds, {added} jobs, {caught} of them accepted at a "
            f"hold; hold {median(holds) * 1000:.2f} ms (median), "
            f"{max(holds) * 1000:.2f} at most; settled {median(lags) * 1000:.2f} ms "
            f"after the last end (median); 0 lost, 0 twice"
        )
