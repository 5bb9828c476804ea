"""A small engine of our own, whose queue is a folder: any process can take part.

    python -m tests.engines.spool QUEUE SOCKETS NAME SLOTS

runs a worker of it with an agent, until a signal. It is what the tests of agents
and of blocking sources hold.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from drainmw.agent import Agent
from drainmw.sources.base import Counts, Running
from tests.engines.journal import work

PULSE = 0.005  # seconds between two looks into the folder


class Spool:
    """The queue: one file a job, oldest first by its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken = folder / "taken"
        self.taken.mkdir(parents=True, exist_ok=True)
        self._numbers = count()

    def put(self, journal: Path, ids: Sequence[str], seconds: float) -> None:
        for id in ids:
            draft = self.folder / ".draft"
            draft.write_text(f"{seconds} {journal}")
            draft.rename(self.folder / f"{next(self._numbers):06} {id}")

    def take(self) -> tuple[str, str, float] | None:
        """A job that nobody else has: its id, its journal, its length."""
        for name in sorted(os.listdir(self.folder)):
            if name.startswith(".") or name == "taken":
                continue
            mine = self.taken / name
            try:
                (self.folder / name).rename(mine)
            except FileNotFoundError:
                continue
            seconds, journal = mine.read_text().split(" ", 1)
            return name.partition(" ")[2], journal, float(seconds)
        return None


class SpoolWorker:
    """The slots of one process, and their blocking source."""

    def __init__(self, spool: Spool, slots: int) -> None:
        self._spool = spool
        self._news = threading.Condition()
        self._held = False
        self._stopped = False
        self._pulls = 0
        self._running: dict[object, Running] = {}
        self.handed_back = 0
        self._slots = [
            threading.Thread(target=self._slot, daemon=True) for _ in range(slots)
        ]

    def start(self) -> None:
        for slot in self._slots:
            slot.start()

    def stop(self) -> None:
        """End once what runs is done."""
        self._stopped = True
        for slot in self._slots:
            slot.join()

    def hold(self) -> None:
        with self._news:
            self._held = True
            self._news.wait_for(lambda: not self._pulls)  # the barrier

    def count(self) -> Counts:
        with self._news:
            return Counts(jobs=len(self._running) + self._pulls)

    def settle(self) -> None:
        with self._news:
            self._news.wait_for(lambda: not self._running or not self._held)

    def release(self) -> None:
        with self._change():
            self._held = False

    def running(self) -> list[Running]:
        return list(self._running.values())

    def _slot(self) -> None:
        while not self._stopped:
            with self._news:
                if self._held:
                    self._news.wait(PULSE)
                    continue
                self._pulls += 1
            job = self._spool.take()
            key = object()
            with self._change():
                self._pulls -= 1
                if job is not None:
                    self._running[key] = Running(job[0], time.monotonic())
            if job is None:
                time.sleep(PULSE)
                continue
            id, journal, seconds = job
            work(journal, id, seconds)
            with self._change():
                del self._running[key]

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._news:
            yield
            self._news.notify_all()


def main(queue: str, sockets: str, name: str, slots: str) -> None:
    # Before there are threads, which inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    worker = SpoolWorker(Spool(Path(queue)), int(slots))
    with Agent(worker, sockets, name):
        worker.start()
        print("works", flush=True)
        signal.sigwait([signal.SIGTERM])
        worker.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
