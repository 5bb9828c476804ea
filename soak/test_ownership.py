"""One schedule and eight workers of two releases, which change and are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from statistics import median

import pytest

from drainmw.core.timetable import due_ms
from tests.ownership.conftest import (
    journal,
    postgres_port,
    redis_url,
    runtime,
    valkey_port,
)
from tests.ownership.journal import Journal
from tests.ownership.test_releases import WORKERS, begin, release, resume
from tests.processes import Served, until

__all__ = ["journal", "postgres_port", "redis_url", "runtime", "valkey_port"]

CHANGES = 20
KILLS = 20
PERIOD = 200  # milliseconds
LASTS = 0.05  # seconds of a tick; a quarter of the kills come within one


@pytest.fixture(params=["file", "redis", "postgres"])
def ownership(request: pytest.FixtureRequest) -> str:
    """Where it is noted who owns."""
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    if request.param == "postgres":
        port = request.getfixturevalue("postgres_port")
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"
    return "file"


class Story:
    """Both releases, and what they have fired."""

    def __init__(self, blue: Served, green: Served, journal: Journal) -> None:
        self.releases = (blue, green)
        self.journal = journal

    def owner(self) -> int:
        """The process that has fired last."""
        return self.journal.fired()[-1].pid

    def workers(self, found: Served) -> set[int]:
        """Those that answer."""
        workers = found.report()["workers"]
        return {worker["pid"] for worker in workers if not worker["unknown"]}

    def until_whole(self) -> None:
        """Wait until all workers are there, and nothing is overdue."""
        until(
            lambda: all(len(self.workers(found)) == WORKERS for found in self.releases),
            "eight workers",
        )
        until(lambda: self.late() < 2 * PERIOD, "caught up")

    def late(self) -> int:
        """By how many milliseconds the last tick that was fired is in the past."""
        return round(time.time() * 1000) - self.journal.fired()[-1].due

    def next_of(self, but: set[int], after: float) -> float:
        """Wait until a process other than those fires; gives the moment."""

        def found() -> float:
            moments = [f.at for f in self.journal.fired() if f.pid not in but]
            return next((at for at in moments if at > after), 0.0)

        return float(until(found, "another owner"))

    def change(self) -> float:
        """Cut over to the release that does not own; gives the seconds it takes."""
        self.until_whole()
        owner = self.owner()
        old = next(r for r in self.releases if owner in self.workers(r))
        workers = self.workers(old)
        began = time.monotonic()
        nonce = begin(old)
        begun = time.monotonic()
        fired = self.next_of(workers, began)
        late = [f for f in self.journal.fired() if f.pid in workers and f.at > begun]
        assert late == [], "fired after the begin"
        resume(old, nonce)
        return fired - began

    def kill(self) -> float:
        """Kill the owner at any moment; gives the seconds until the next tick."""
        self.until_whole()
        owner = self.owner()
        time.sleep(random.uniform(0, PERIOD / 1000))
        killed = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(owner, signal.SIGKILL)
        return self.next_of({owner}, killed) - killed

    def reported(self) -> set[int]:
        """The ticks that the logs call interrupted."""
        told = [e for r in self.releases for e in r.events("tick interrupted")]
        return {due_ms(datetime.fromisoformat(event["due"])) for event in told}


@pytest.fixture
def story(
    tmp_path: Path, runtime: Path, journal: Journal, ownership: str
) -> Iterator[Story]:
    more = {
        "OFTEN": str(PERIOD / 1000),
        "LASTS": str(LASTS),
        "DRAINMW_OWNERSHIP": ownership,
        "DRAINMW_APP": tmp_path.name,
    }
    workers = ("--workers", str(WORKERS))
    with ExitStack() as opened:
        blue, green = (
            opened.enter_context(
                release(tmp_path / name, runtime, journal, *workers, **more)
            )
            for name in ("blue", "green")
        )
        found = Story(blue, green, journal)
        until(journal.fired, "fired")
        yield found


def test_every_tick_is_fired_once_or_reported(
    story: Story, ownership: str, capsys: pytest.CaptureFixture[str]
) -> None:
    acts = [story.change] * CHANGES + [story.kill] * KILLS
    random.shuffle(acts)
    took: dict[str, list[float]] = {"change": [], "kill": []}
    for act in acts:
        took[act.__name__].append(act())
    story.until_whole()
    times = Counter(fired.due for fired in story.journal.fired())
    ended = {fired.due for fired in story.journal.fired("often ended")}
    reported, missing = story.reported(), story.journal.missing(PERIOD)
    last = max(times)  # may be running
    unended = set(times) - ended - {last}
    assert set(times.values()) == {1}
    assert missing <= reported, sorted(missing - reported)
    assert unended <= reported, sorted(unended - reported)
    overlaps = [e for r in story.releases for e in r.events("schedule overlap")]
    assert overlaps == []
    lost = [e for r in story.releases for e in r.events("schedules lost")]
    with capsys.disabled():
        kind = ownership.partition(":")[0]
        print(
            f"\n{kind}: {CHANGES} cut-overs, {KILLS} owners killed, "
            f"{len(times)} ticks, 0 fired twice, {len(missing)} not fired and "
            f"{len(unended)} cut, all reported ({len(reported)}); {len(lost)} leases "
            f"lost; cut over in {_shown(took['change'])}, taken over in "
            f"{_shown(took['kill'])}"
        )


def _shown(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} s (median), {max(seconds):.2f} s at most"
