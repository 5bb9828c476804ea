"""What all push sources of jobs have in common: jobs are counted, oldest first.

A job counts from before its source looks whether it takes it, until it is over;
so a drain never misses one that is being taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from drainmw.errors import IntakeRefused
from drainmw.flag import Pulse
from drainmw.sources.base import Counts, Intake, Running
from drainmw.sources.feeding import Feeders, Work, depth


class JobSource:
    """A push source; what makes the jobs is for its subclass to say."""

    intake: Intake = "push"

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        is_fed: Callable[[], bool] | None = None,
    ) -> None:
        """`is_fed` tells whether there is work in flight, such as requests, that
        may start jobs; a `Drain` tells it of its own."""
        self.name = name
        self._clock = clock
        self._feeders = Feeders(self, is_fed)
        self._jobs: dict[Work, Running] = {}
        self._held = False
        self._changed = Pulse()

    def fed_by(self, is_fed: Callable[[], bool]) -> None:
        """Take work, while held, also where that says so."""
        self._feeders.add(is_fed)

    async def hold(self) -> None:
        """Refuse what does not come from work in flight."""
        self._held = True

    def count(self) -> Counts:
        """The jobs that are not over."""
        return Counts(jobs=len(self._jobs))

    async def settled(self) -> None:
        """Return when no job is left."""
        await self._changed.until(lambda: not self._jobs)

    async def release(self) -> None:
        """Take jobs of anybody again."""
        self._held = False

    def running(self) -> Iterator[Running]:
        """The jobs that are not over, oldest first."""
        return iter(list(self._jobs.values()))

    def _enter(self, label: str) -> Work:
        """Count a job.

        Raises:
            IntakeRefused: The source is held, and this is no work in flight.
        """
        job = Work(self, depth(self._held))
        self._jobs[job] = Running(label, self._clock())
        if self._held and not self._feeders.may_feed():
            self._end(job)
            raise IntakeRefused(f"job {label}")
        return job

    def _end(self, job: Work) -> None:
        self._jobs.pop(job, None)
        self._changed.beat()
        job.over()
