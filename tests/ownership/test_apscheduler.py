"""Schedulers of APScheduler in four processes, of which one fires."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore

from tests.ownership.journal import Journal
from tests.ownership.test_releases import WORKERS, begin, resume
from tests.processes import served, until

APP = "tests.ownership.scheduled_app:app"
NAME = "apscheduler"
A_WHILE = 0.35  # seconds, in which each job is due three times


def test_one_of_four_schedulers_fires_and_another_takes_over(
    tmp_path: Path, runtime: Path, journal: Journal
) -> None:
    """J9: and after a begin nobody of the release fires."""
    jobs = tmp_path / "jobs.sqlite"
    shared = SQLAlchemyJobStore(f"sqlite:///{jobs}")
    shared.jobs_t.create(shared.engine)  # four at once would race for it
    shared.engine.dispose()
    environment = {
        "DRAINMW_RUNTIME_DIR": str(runtime),
        "JOURNAL": str(journal.path),
        "JOBS": str(jobs),
    }
    options = ("--workers", str(WORKERS))
    with served(tmp_path, *options, app=APP, environment=environment) as found:
        first = firing(journal, after=0.0)
        os.kill(first, signal.SIGKILL)
        killed = time.monotonic()
        second = firing(journal, after=killed)
        assert second != first
        nonce = begin(found)
        begun = time.monotonic()
        time.sleep(A_WHILE)
        told = [s for s in found.report()["sources"] if s["name"] == NAME]
        assert len({s["worker"] for s in told}) >= WORKERS - 1  # one is reborn
        assert all(s["held"] for s in told)
        assert any(s["overdue"] for s in told)  # its jobs in memory
        assert not any(fired(journal, after=begun))
        resume(found, nonce)
        firing(journal, after=begun)


def firing(journal: Journal, after: float) -> int:
    """The one process that fires the jobs of both stores, for a while."""
    until(lambda: all(fired(journal, after)), "jobs of both stores were fired")
    time.sleep(A_WHILE)
    (pid,) = set.union(*fired(journal, after))
    return pid


def fired(journal: Journal, after: float) -> list[set[int]]:
    """Who has fired since then: the job in memory, and the one that is shared."""
    return [
        {f.pid for f in journal.fired(name) if f.at > after}
        for name in ("memory", "shared")
    ]
