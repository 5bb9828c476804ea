"""Whole drains of an app whose jobs run in worker processes."""

import signal

import pytest

from tests.engines.drains import (
    ended,
    named_at_the_deadline,
    quiet_while_requests_are_busy,
)
from tests.engines.journal import Journal
from tests.engines.spooled import Workers
from tests.rig import Release

pytestmark = pytest.mark.anyio


async def test_consumers_are_quiet_while_requests_are_busy(
    workers: Workers, journal: Journal
) -> None:
    workers.start("a", "b")
    await quiet_while_requests_are_busy(workers, journal, seconds=0.1)


async def test_jobs_of_workers_stand_in_the_report_of_a_drain_that_failed(
    workers: Workers, journal: Journal
) -> None:
    workers.start("a", "b", slots=1)
    await named_at_the_deadline(workers, journal)


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
    assert await ended(release) == "failed"
    report = await release.client.report()
    assert "of spool died while it was held" in report["failure"]
