"""Schedules of real processes, which are handed over, killed and doubled."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from drainmw.tokens import generate
from tests.ownership.journal import Fired, Journal
from tests.processes import Served, served, until
from tests.rig import SOURCE, TARGET

APP = "tests.ownership.app:app"
WORKERS = 4
HOLD = 3.5  # seconds


@contextmanager
def release(
    folder: Path, runtime: Path, journal: Journal, *options: str, **more: str
) -> Iterator[Served]:
    """A release of the app; its name is its import string, as nothing is said."""
    folder.mkdir(exist_ok=True)
    environment = {
        "DRAINMW_RUNTIME_DIR": str(runtime),
        "JOURNAL": str(journal.path),
        **more,
    }
    with served(folder, *options, app=APP, environment=environment) as found:
        yield found


def begin(found: Served) -> str:
    nonce = generate()
    with found.asked() as client:
        client.begin(nonce, SOURCE, TARGET, 20_000)
    return nonce


def resume(found: Served, nonce: str) -> None:
    with found.asked() as client:
        client.resume(nonce)


def test_one_of_four_workers_fires_and_another_takes_over(
    tmp_path: Path, runtime: Path, journal: Journal
) -> None:
    """J9: and after a begin nobody of the release fires."""
    workers = ("--workers", str(WORKERS))
    with release(tmp_path, runtime, journal, *workers) as found:
        until(lambda: len(journal.fired()) > 5, "fired")
        (first,) = journal.pids()
        os.kill(first, signal.SIGKILL)
        killed = time.monotonic()
        until(lambda: journal.pids(after=killed), "somebody else")
        (second,) = journal.pids(after=killed)
        assert second != first
        assert min(f.at for f in journal.fired() if f.pid == second) - killed < 3.0
        nonce = begin(found)
        found.wait_for_event("drain ended")
        begun = time.monotonic()
        time.sleep(0.6)
        assert journal.pids(after=begun) == set()
        resume(found, nonce)
        until(lambda: journal.pids(after=begun), "fires again")
        generations = [e["generation"] for e in found.events("schedules owned")]
        assert generations == [1, 2, 3]
        missing = journal.missing(100)
        told = len(found.events("tick interrupted"))
        assert len(missing) <= told <= 1  # it may have been killed inside of one


def test_a_single_moment_within_a_hold_is_fired_once(tmp_path: Path) -> None:
    """J8: by a resume here, or in the new release; both held for 3.5 s at once.

    And the alarm stays quiet where one release takes over from another.
    """
    with ExitStack() as opened:
        alone = _Story(tmp_path / "alone", opened)
        pair = _Story(tmp_path / "pair", opened)
        for start in (alone.start, pair.start):
            start("blue")
        pair.start("green")
        moment = time.time() + 1.5
        for found in (alone.blue, pair.blue, pair.green):
            found.get(f"/once?{moment}")
        for story in (alone, pair):
            story.blue.wait_for_event("schedules owned")
            assert story.once == []
        nonces = [begin(story.blue) for story in (alone, pair)]
        held = time.monotonic()
        assert time.time() < moment
        time.sleep(HOLD)
        assert alone.once == []
        assert time.time() > moment
        resume(alone.blue, nonces[0])
        resume(pair.blue, nonces[1])
        (fired,) = pair.once
        assert fired.pid == pair.green.popen.pid
        assert fired.at - held < HOLD
        until(lambda: alone.once, "fired after the resume")
        for found in (pair.blue, pair.green):
            found.signal()
            assert found.exit_code() == 0
            assert found.events("schedule overlap") == []
        (fired,) = alone.once
        assert fired.at - held > HOLD
        assert len(pair.once) == 1
        assert pair.journal.missing(200) == set()
        assert {f.pid for f in pair.journal.fired()} == {
            pair.blue.popen.pid,
            pair.green.popen.pid,
        }
        assert list(pair.runtime.glob("own-*/*.beat.*")) == []


class _Story:
    """The releases of one app, in a place of their own."""

    blue: Served
    green: Served

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        folder.mkdir()
        self.runtime = folder / "run"
        self.journal = Journal(folder / "journal")
        self._folder = folder
        self._opened = opened

    @property
    def once(self) -> list[Fired]:
        return self.journal.fired("once")

    def start(self, name: str) -> None:
        where = (self._folder / name, self.runtime, self.journal)
        started = self._opened.enter_context(release(*where, OFTEN="0.2"))
        setattr(self, name, started)


def test_two_live_instances_are_warned_of_and_left_alone(
    tmp_path: Path, runtime: Path, journal: Journal
) -> None:
    """Two workers that own by themselves; who is asked is their parent."""
    options = ("--workers", "2")
    with release(
        tmp_path, runtime, journal, *options, DRAINMW_OWNERSHIP="off"
    ) as found:
        found.wait_for_event("schedules owned", 2)
        owned = time.monotonic()
        found.wait_for_event("schedule overlap", 2)
        assert time.monotonic() - owned < 3 * 1.0 + 2.0  # three beats, and some room
        (warning,) = found.report()["warnings"]
        pids = {str(w["pid"]) for w in found.report()["workers"]}
        assert warning.startswith("schedule overlap: reports is owned by each of")
        assert set(re.findall(r"process (\d+)", warning)) == pids
        time.sleep(0.3)
        assert len(journal.pids(after=owned)) == 2
        assert len(found.events("schedule overlap")) == 2
