"""RQ's workers, each in a process of its own, as the scenario drives them.

    python -m tests.engines.rqs URL SECONDS

runs a cron of one job with that interval; the environment tells its release.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from redis import Redis
from rq import Queue

from drainmw.sources.base import Counts, WorkSource
from drainmw.sources.rq import RQWorkers
from drainmw.sources.rqclock import DrainableCron, RQClock
from drainmw.sources.rqrelease import VARIABLE
from tests.engines.journal import Journal, work
from tests.processes import Process, running

WORKER = "drainmw.sources.rq.DrainableWorker"


class Release:
    """The workers of one release, on a queue that all releases share."""

    def __init__(
        self, url: str, journal: Journal, release: str, expected: int = 1
    ) -> None:
        self.url = url
        self.release = release
        self.redis = Redis.from_url(url)
        self.queue = Queue("work", connection=self.redis)
        self.source = RQWorkers(self.redis, release, expected=expected)
        self.clock = RQClock(self.redis, release)
        self.journal = journal
        self._ends = contextlib.ExitStack()

    def start(
        self, number: int, *options: str, queues: Sequence[str] = ("work",)
    ) -> list[Process]:
        """Start them side by side, and wait until they work."""
        program = ("-m", "rq.cli", "worker", "--url", self.url, *options)
        started = [
            self._ends.enter_context(
                running(
                    *(*program, "--worker-class", WORKER, *queues),
                    environment={VARIABLE: self.release},
                )
            )
            for _ in range(number)
        ]
        for process in started:
            process.out.wait_for_text("Listening on work")
        return started

    def start_cron(self, interval: float) -> Process:
        """Start one in a process of its own, and wait until it ticks."""
        program = ("-m", "tests.engines.rqs", self.url, str(interval))
        own = {VARIABLE: self.release}
        process = self._ends.enter_context(running(*program, environment=own))
        process.out.wait_for_text("ticks")
        return process

    async def enqueue(self, ids: Sequence[str], seconds: float) -> None:
        for id in ids:
            self.queue.enqueue(
                "tests.engines.journal.work", str(self.journal.path), id, seconds
            )

    async def count(self) -> Counts:
        """As the source says."""
        return await counted(self.source)

    def end(self) -> None:
        self._ends.close()
        self.redis.close()


async def counted(source: WorkSource) -> Counts:
    """As it says."""
    answer = source.count()
    return answer if isinstance(answer, Counts) else await answer


def run_cron(url: str, interval: str) -> None:
    """A cron of one job, in the main thread of a process of its own."""
    cron = DrainableCron(connection=Redis.from_url(url))
    seconds: Any = float(interval)  # RQ's types know whole ones only
    cron.register(work, "work", args=("/dev/null", "tick", 0.0), interval=seconds)
    print("ticks", flush=True)
    cron.start()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    run_cron(*sys.argv[1:])
