"""How late an event loop is: what a timer that is due at any moment would see."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, thread_time

from starlette.types import Receive, Scope, Send

TICK = 0.001  # seconds from one look to the next


class Lateness:
    """The milliseconds by which each tick came late.

    A loop that stalls is late for every tick of that time, not for one. How much
    of it was the loop's own work is noted, too: the rest is other processes that
    had the CPU. So is what the garbage collector took.
    """

    def __init__(
        self,
        worked: Callable[[], float] = thread_time,
        waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`worked` tells seconds of its own work: `process_time` where that is also
        the work of other threads, for which the loop waits. `waited` tells seconds
        in which the loop could have gone on, had it had a CPU."""
        self._worked = worked
        self._waited = waited
        self._ticks = array("d")
        self._late = array("d")
        self._own = array("d")
        self._collections: list[tuple[float, float]] = []
        self._collects = 0.0
        gc.callbacks.append(self._note_collection)

    async def watch(self) -> None:
        """Look, for as long as the loop runs."""
        due, worked, waited = monotonic(), self._worked(), self._waited()
        while True:
            await asyncio.sleep(due - monotonic())
            now, work, wait = monotonic(), self._worked(), self._waited()
            most = min(work - worked, now - due - (wait - waited))
            worked, waited = work, wait
            while due <= now:
                self._ticks.append(due)
                self._late.append((now - due) * 1000)
                self._own.append(max(0.0, min(now - due, most)) * 1000)
                due += TICK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a GET with all of it; let the collector run for a POST."""
        if scope["method"] == "POST":
            gc.collect()
        told = {
            "ticks": list(self._ticks),
            "lateness": list(self._late),
            "own": list(self._own),
            "collections": self._collections,
        }
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(told).encode()})

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        now = monotonic()
        if phase == "start":
            self._collects = now
        elif info["generation"] == 2:  # the others are short
            self._collections.append((now, (now - self._collects) * 1000))


def without_cpu() -> Callable[[], float]:
    """Tells the seconds in which this thread was ready to run, and did not. Linux."""
    file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    return lambda: int(os.pread(file, 100, 0).split()[1]) / 1e9


@dataclass(frozen=True)
class Told:
    """The same, as it was answered."""

    ticks: list[float]
    """Monotonic seconds at which each was due."""
    lateness: list[float]
    """Milliseconds by which each came late."""
    own: list[float]
    """At most so many of them were the loop's own work."""
    collections: list[tuple[float, float]]
    """Monotonic seconds at the end of each, and its milliseconds."""

    def late(self, start: float, end: float) -> list[float]:
        """The lateness of what was due in that time."""
        return self._of_time(self.lateness, start, end)

    def own_late(self, start: float, end: float) -> list[float]:
        """The loop's own part of it."""
        return self._of_time(self.own, start, end)

    def longest_collection(self, start: float, end: float) -> float:
        """Milliseconds of the longest one of that time."""
        taken = [taken for at, taken in self.collections if start <= at < end]
        return max(taken, default=0.0)

    def _of_time(self, values: list[float], start: float, end: float) -> list[float]:
        pairs = zip(self.ticks, values, strict=True)
        return [value for due, value in pairs if start <= due < end]
