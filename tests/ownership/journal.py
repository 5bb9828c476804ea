"""What the processes of a test have fired, in one file that outlives them."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from drainmw.core.timetable import due_ms


@dataclass(frozen=True, slots=True)
class Fired:
    """One tick, as the process that has fired it wrote it down."""

    schedule: str
    due: int  # milliseconds since 1970
    pid: int
    at: float  # monotonic seconds, which all processes of a host share


def write(schedule: str, due: datetime) -> None:
    """Add a line, in one piece."""
    line = json.dumps([schedule, due_ms(due), os.getpid(), time.monotonic()])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = os.open(os.environ["JOURNAL"], flags, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


class Journal:
    """The same file, as the test reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fired(self, schedule: str = "often") -> list[Fired]:
        """What was fired of a schedule, in the order of its lines."""
        text = self.path.read_text() if self.path.exists() else ""
        found = [Fired(*json.loads(line)) for line in text.splitlines()]
        return [fired for fired in found if fired.schedule == schedule]

    def pids(self, after: float = 0.0) -> set[int]:
        """Who has fired anything since that moment."""
        return {fired.pid for fired in self.fired() if fired.at > after}

    def missing(self, period: int, schedule: str = "often") -> set[int]:
        """The ticks that nobody has fired, from the first to the last; checks that
        none was fired twice."""
        times = Counter(fired.due for fired in self.fired(schedule))
        assert times, "nothing was fired"
        assert set(times.values()) == {1}, "fired twice"
        return set(range(min(times), max(times), period)) - set(times)
