"""What a report states of several workers."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from drainmw.contract import Report
from drainmw.core.drain import Lifecycle
from drainmw.core.roster import Worker, fold
from drainmw.reporting import Told, troubles
from drainmw.statement import report_of

OWN = os.getpid()
OTHER = OWN + 1


def worker(pid: int) -> Worker:
    """One that has answered."""
    return Worker(pid, 0.0, 1.0, generation=1, settled=True, counts=(0, 0, 2, 0))


def told(pid: int) -> Told:
    """What it tells: a source, a warning, and one piece of work."""
    source: Any = {"jobs": 2, "schedules": 0, "overdue": 1, "worker": pid}
    blocker: Any = {"kind": "jobs", "path": str(pid), "ageMs": 1, "worker": pid}
    return {
        "blockers": [blocker],
        "warnings": ["mend me"],
        "sources": [source],
    }


def stated(workers: list[Worker], *tellers: int) -> Report:
    lifecycle = Lifecycle(None)
    roll = fold(workers, 1)
    tells = [told(pid) for pid in tellers]
    return report_of(lifecycle, workers, roll, tells, app=None, now=2.0)


def known(report: Report) -> list[tuple[int, int | None, int | None]]:
    """Of each source: whose it is, its jobs, and what it withholds."""
    return [(s["worker"], s["jobs"], s["overdue"]) for s in report["sources"]]


def test_the_sources_of_all_workers_are_there_and_a_warning_once() -> None:
    report = stated([worker(OWN), worker(OTHER)], OWN, OTHER)
    assert known(report) == [(OWN, 2, 1), (OTHER, 2, 1)]
    assert report["warnings"] == ["mend me"]


def test_the_counts_of_a_silent_worker_are_unknown() -> None:
    """It has told them for an earlier report."""
    silent = replace(worker(OTHER), generation=0)
    report = stated([worker(OWN), silent], OWN, OTHER)
    assert known(report) == [(OWN, 2, 1), (OTHER, None, 1)]


def test_a_worker_with_a_source_that_gives_no_answer_has_told_of_the_others() -> None:
    vague = replace(worker(OTHER), counts=(0, 0, None, 0))
    report = stated([worker(OWN), vague], OWN, OTHER)
    assert known(report) == [(OWN, 2, 1), (OTHER, 2, 1)]


def test_what_a_dead_worker_has_told_is_not_told() -> None:
    """One that was born in its place may not have told anything yet."""
    report = stated([worker(OWN)], OWN, OTHER)
    assert known(report) == [(OWN, 2, 1)]
    assert [blocker["path"] for blocker in report["blockers"]] == [str(OWN)]


def test_what_all_workers_lack_is_told_once() -> None:
    away: Any = {"name": "celery", "error": "no answer"}
    assert troubles([away, away, away | {"error": None}]) == {
        "unknown": "celery: no answer"
    }
    assert troubles([]) == {}
