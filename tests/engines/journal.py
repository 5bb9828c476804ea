"""What jobs did, and when: lines of a file, so that any process can write.

A job of any engine calls `work` or `work_async` with the path of the journal. It
imports nothing but the standard library, because forks and workers import it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PATIENCE = 20.0  # seconds for whatever a test waits for
GLANCE = 0.005  # seconds between two looks into the file

What = Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class Line:
    """One event. `at` is CLOCK_MONOTONIC, which all processes here share."""

    at: float
    what: What
    id: str


def work(path: str, id: str, seconds: float) -> None:
    """The body of a job that blocks its thread."""
    with _noted(path, id):
        time.sleep(seconds)


async def work_async(path: str, id: str, seconds: float) -> None:
    """The body of a job in an event loop. It is cancelled without an end."""
    with _noted(path, id):
        await asyncio.sleep(seconds)


@contextmanager
def _noted(path: str, id: str) -> Iterator[None]:
    _write(path, "start", id)
    yield
    _write(path, "end", id)


def _write(path: str, what: What, id: str) -> None:
    # One write to a file that is open for appending: lines never mix.
    line = f"{time.monotonic():.6f} {what} {id}\n".encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


class Journal:
    """The reader's side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[Line]:
        """All of it, in the order in which it was written."""
        split = (line.split(" ", 2) for line in self.path.read_text().splitlines())
        return [Line(float(at), what, id) for at, what, id in split]  # type: ignore[arg-type]

    def started(self, since: float = 0.0) -> list[str]:
        """What started after that instant; twice what started twice."""
        return self._of("start", since)

    def ended(self, since: float = 0.0) -> list[str]:
        """What ended after that instant."""
        return self._of("end", since)

    def running(self) -> list[str]:
        """What has started and not ended."""
        left: list[str] = []
        for line in self.lines():
            left.append(line.id) if line.what == "start" else left.remove(line.id)
        return left

    async def until(self, met: Callable[[], object], what: str) -> None:
        """Wait for something that the journal tells."""
        deadline = time.monotonic() + PATIENCE
        while not met():
            assert time.monotonic() < deadline, f"never: {what}\n{self}"
            await asyncio.sleep(GLANCE)

    def __str__(self) -> str:
        return self.path.read_text()

    def _of(self, what: What, since: float) -> list[str]:
        lines = self.lines()
        return [line.id for line in lines if line.what == what and line.at > since]
