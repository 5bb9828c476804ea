"""Whole drains of an app whose jobs run in worker processes."""

import asyncio
import signal
import time

import pytest

from drainmw import Drain
from tests.engines.journal import Journal
from tests.engines.scenario import all_ran_once
from tests.engines.spooled import Workers
from tests.rig import Release, Waiting

pytestmark = pytest.mark.anyio


async def ended(drain: Drain) -> str:
    async with asyncio.timeout(10):
        await drain.ended
    return str(drain.phase)


async def test_consumers_are_quiet_while_requests_are_busy(
    workers: Workers, journal: Journal
) -> None:
    """J2: within 200 ms of the begin, not after HTTP."""
    app = Waiting()
    release = Release(app)
    release.drain.add_source(workers.source)
    workers.start("a", "b")
    ids = [f"job-{n}" for n in range(40)]
    await workers.enqueue(ids, 0.1)
    await journal.until(lambda: len(journal.started()) > 4, "they work")
    async with release.call() as call:
        await release.client.begin(timeoutMs=5000)
        begun = time.monotonic()
        await journal.until(lambda: not journal.running(), "all that ran has ended")
        await asyncio.sleep(0.3)
        assert journal.started(since=begun + 0.2) == [], str(journal)
        assert len(journal.ended()) < len(ids)
        assert str(release.drain.phase) == "draining"
        app.go.set()
        await call.wait()
        assert await ended(release.drain) == "drained"
    await release.client.resume()
    await all_ran_once(journal, ids)


async def test_jobs_of_workers_stand_in_the_report_of_a_drain_that_failed(
    workers: Workers, journal: Journal
) -> None:
    """J7."""
    release = Release()
    release.drain.add_source(workers.source)
    workers.start("a", "b", slots=1)
    await workers.enqueue(["slow-1", "slow-2"], 20.0)
    await journal.until(lambda: len(journal.started()) == 2, "both work")
    await release.client.begin(timeoutMs=200)
    assert await ended(release.drain) == "failed"
    report = await release.client.report()
    assert report["failure"] == "RUNTIME_DRAIN_TIMEOUT"
    (told,) = (source for source in report["sources"] if source["name"] == "spool")
    assert (told["held"], told["jobs"], told["handedBack"]) == (True, 2, 0)
    assert sorted(told["running"]) == ["slow-1", "slow-2"]


async def test_a_release_whose_worker_died_is_not_drained(
    workers: Workers, journal: Journal
) -> None:
    """J5: what it ran is unknown."""
    release = Release()
    release.drain.add_source(workers.source)
    both = workers.start("a", "b", slots=1)
    await workers.enqueue(["lost"], 20.0)
    await journal.until(journal.started, "it works")
    await release.client.begin(timeoutMs=1000)
    await workers.source.hold()  # the drain has done so, or is about to
    for process in both:
        process.signal(signal.SIGKILL)
    assert await ended(release.drain) == "failed"
    report = await release.client.report()
    assert "of spool died while it was held" in report["failure"]
